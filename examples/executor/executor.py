#!/usr/bin/env python3
"""A persistent executor for agentenv: an agent of your own, in 20 lines."""
import json
import sys


def event(kind, payload):
    print(json.dumps({"type": kind, "payload": payload}), flush=True)


prompts = 0
for line in sys.stdin:
    message = json.loads(line)
    if message.get("type") == "shutdown":  # the end of the conversation
        break
    # The first line of a process is the invocation, a further one a turn.
    if "mode" in message:
        print("mode", message["mode"], "in", message["project_dir"], file=sys.stderr)
    prompts += 1
    prompt = message["parameters"]["prompt"]
    event("agent_thought_chunk", {"content": {"type": "text", "text": "I count the words."}})
    answer = f"Prompt {prompts} has {len(prompt.split())} words."
    print(json.dumps({"type": "turn_complete", "result": answer}), flush=True)
