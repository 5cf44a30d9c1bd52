// Package command drives an executor: a program of the user that is an agent. The
// configuration names it:
//
//	agent: {name: command, command: [python3, executor.py]}
//
// A one_shot executor, the default, is started for each prompt. It gets one line of JSON
// on its standard input, the invocation, and then the end of the input:
//
//	{"schema_version": "2.2", "mode": "start", "session_id": "6f1c...",
//	 "parameters": {"prompt": "Count to three"}, "project_dir": "/path/of/the/workspace"}
//
// mode is "start" for the first prompt of a conversation and "resume" for later ones.
// What an executor remembers is its own business; session_id names the conversation. It
// works in project_dir, and what it prints to standard output is its answer: text, or
// the JSON lines below. An exit status other than 0 fails the query.
//
// A persistent executor (config: {lifecycle: persistent}) is started with the first
// prompt and stays. It gets the invocation, then a line for each further prompt, and at
// the end of the conversation a shutdown line and the end of the input. A process that is
// started later in the conversation gets an invocation with the mode "resume":
//
//	{"type": "turn", "parameters": {"prompt": "Go on"}}
//	{"type": "shutdown"}
//
// It ends each turn with a line whose result is the answer, a text or any JSON:
//
//	{"type": "turn_complete", "result": "one, two, three"}
//
// Other text on the standard output of a persistent executor is logged. One that prints
// nothing for 15 minutes during a turn is ended.
//
// Both kinds may print events, one a line, with the payloads of package runnerscripts:
// agent_message_chunk, agent_thought_chunk, tool_call, tool_call_update, plan,
// usage_update and log. The next two lines say "one " and begin a tool call:
//
//	{"type": "agent_message_chunk", "payload": {"content": {"type": "text", "text": "one "}}}
//	{"type": "tool_call", "payload": {"toolCallId": "1", "title": "Count", "status": "in_progress"}}
//
// Each line of standard error becomes a log event with the stream "stderr": "envctl -v"
// shows it as it comes, "envctl logs" afterwards. An interrupt is SIGTERM, three seconds
// later SIGKILL. The environment has HOME, AGENT_SESSION_ID, PATH and the agent's env.
//
// The invocation has two more fields if there is something to say. executor_config is
// agent.config.config as it is. agent_blueprint has the name (agent.config.type, or
// "command"), the system_prompt and, by their names, the mcp_servers:
// {"type": "stdio", "command", "args", "env"} or {"type": "http", "url", "headers"}. The
// executor starts them and uses their tools.
//
// examples/executor is a persistent executor in Python.
package command
