// Package command drives an executor: an agent that is a program of the user. The
// configuration names the program:
//
//	agent: {name: command, command: [python3, executor.py]}
//
// The driver starts a one_shot executor, the default, for each prompt. The executor reads
// one line of JSON from its standard input, the invocation, and then EOF:
//
//	{"schema_version": "2.2", "mode": "start", "session_id": "6f1c...",
//	 "parameters": {"prompt": "Count to three"}, "project_dir": "/path/of/the/workspace"}
//
// mode is "start" for the first prompt of a conversation and "resume" for later ones.
// The executor itself remembers the conversation, which session_id names. It works in
// project_dir. Its standard output is its answer: text, or the JSON lines below. An exit
// status other than 0 fails the query.
//
// The driver starts a persistent executor (config: {lifecycle: persistent}) with the first
// prompt. The executor stays between prompts. It reads the invocation, then a line for each
// further prompt, and at the end of the conversation a shutdown line and EOF. If the driver
// starts it again in the conversation, the invocation has the mode "resume":
//
//	{"type": "turn", "parameters": {"prompt": "Go on"}}
//	{"type": "shutdown"}
//
// The executor ends each turn with a line whose result is the answer, text or any JSON:
//
//	{"type": "turn_complete", "result": "one, two, three"}
//
// A result that is no text is the result_data of query_completed. An executor that ends a turn twice is
// started again before the next prompt. The driver logs other text on the standard output of a
// persistent executor. It kills a
// persistent executor that prints nothing there for 15 minutes during a turn.
//
// Both kinds may print events, one per line, with the payloads of package runnerscripts:
// agent_message_chunk, agent_thought_chunk, tool_call, tool_call_update, plan,
// usage_update and log. The next two lines report the text "one " and start a tool call:
//
//	{"type": "agent_message_chunk", "payload": {"content": {"type": "text", "text": "one "}}}
//	{"type": "tool_call", "payload": {"toolCallId": "1", "title": "Count", "status": "in_progress"}}
//
// Each line of standard error becomes a log event with the stream "stderr": "envctl run -v"
// shows it immediately, "envctl logs" afterwards. An interrupt sends SIGTERM and, three
// seconds later, SIGKILL. The environment has HOME, AGENT_SESSION_ID, PATH and the agent's
// env.
//
// The invocation has two optional fields. executor_config is agent.config.config, unchanged.
// agent_blueprint has the name (agent.config.type, or "command"), the system_prompt and the
// mcp_servers by name:
// {"type": "stdio", "command", "args", "env"} or {"type": "http", "url", "headers"}. The
// executor starts them and uses their tools.
//
// An executor with the type procedural gets its parameters as arguments and its output is the result;
// see result.go. docs/executors.md has the profile of an executor with all its fields.
//
// examples/executor is a persistent executor in Python.
package command
