// Package command drives an executor of the user: a program that takes an
// invocation, schema 2.2, as JSON on its standard input. Its profile is the
// session's agent.config.
//
// A one_shot executor is started for each prompt. What it prints is its answer:
// text, or JSON lines.
//
// A persistent executor is started once and gets a line for each further prompt.
// It ends each turn with a turn_complete line; other text that it prints is noise
// and only logged.
//
// Both may print events of this project's own kinds beside that, one a line:
// {"type":"tool_call","payload":{...}}.
//
// The session's system prompt and its MCP servers are in the invocation's
// agent_blueprint, the latter as mcp_servers, each with its name: {"type": "stdio",
// "command", "args", "env"} or {"type": "http", "url", "headers"}. It is for the
// executor to start them and to use their tools.
//
// What an executor remembers between prompts is its own business: it gets the
// session's id, and is told to start or to resume it.
package command
