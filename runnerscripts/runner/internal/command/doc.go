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
// What an executor remembers between prompts is its own business: it gets the
// session's id, and is told to start or to resume it.
package command
