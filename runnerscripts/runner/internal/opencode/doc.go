// Package opencode drives OpenCode. It is the only place that knows this program: its flags and
// configuration, the HTTP API and the events of its server, and its export format. Facts that shape
// the code:
//
//   - A session has its own server, "opencode serve", on a loopback port with a random password.
//     The server stays between prompts, because a start takes seconds.
//   - Events may arrive out of order: a permission request may overtake its tool call, and the
//     final state of a message may overtake the pieces of its text. So at the end of a query the
//     driver reads the messages again and reports what the events left out.
//   - A query is identified by the id of the user's message, which this package chooses; the
//     answers name it as their parent. The status "idle" alone does not end a query: after an
//     interrupt it comes twice, the first time before the last message is written.
//   - The program retries a failing model API forever and reports that only as a status, so the
//     driver counts the retries.
//   - The program has no permission modes, only agents ("build", "plan"). In the modes that allow
//     more, the driver itself answers permission requests.
//   - The program's configuration in the workspace may have plugins and MCP servers, which are
//     commands that run without asking. So the driver disables it unless the workspace is trusted.
//     The same switch disables the instructions in the workspace (AGENTS.md).
//   - A profile becomes files below the program's folder in the session's home, and entries in its
//     configuration. The program replaces {env:NAME} and {file:PATH} anywhere in the text of the
//     configuration. Its permissions are ordered rules: the last matching rule decides. The rules
//     of an agent come after the general rules.
//   - The program has no hooks except functions of plugins, so a generated plugin runs the hooks
//     of a profile. A slash command is a separate request without a field for a system prompt, so
//     the system prompt is one of the instructions.
//   - The program fetches an npm package at each start, and ripgrep for a search if there is none.
//     The driver creates placeholders for both.
//   - The program reports problems with plugins before a client can subscribe to a session's
//     events, or only in its log. It reports MCP servers that do not start only on request.
package opencode
