// Package opencode drives OpenCode. It is the only place that knows this program:
// its flags and configuration, the HTTP API and the events of its server, and what
// it exports and imports. Facts about it that shape the code:
//
//   - A session has a server of its own, "opencode serve", on a loopback port with
//     a random password. It stays between prompts: a start takes seconds.
//   - Its events arrive about in order, not exactly: a request for permission may
//     overtake the tool call that it is for, and what a message became at its end
//     may overtake the pieces of it. So at the end of a query the messages are
//     read once more, which yields what the events left out.
//   - A query is known by the id of the user's message, which this package chooses;
//     the answers name it as their parent. "idle" alone is no end: after an
//     interrupt it comes twice, the first time before the last message is written.
//   - It tries a failing API again for ever and says so only as a state, so the
//     driver counts.
//   - It has no permission mode but its agents ("build", "plan"); the modes that
//     allow more are answers that the driver gives by itself.
//   - Its configuration in the workspace has plugins and MCP servers, which are
//     commands that run without asking, so it is off unless the workspace is
//     trusted. So are the instructions there (AGENTS.md), by the same switch.
//   - A profile is files below its own folder in the session's home, and entries in
//     its configuration. It replaces {env:NAME} and {file:PATH} in the text of that,
//     whatever was meant. Its permissions are rules in order, and the last one
//     that fits decides; an agent's own come after those of all.
//   - It has no hooks but functions of plugins, so a generated plugin runs those of
//     a profile. Slash commands are a separate request, which has no place for a
//     system prompt, so that is one of the instructions.
//   - It fetches an npm package at each start, and ripgrep when it searches and there
//     is none; both are made to look as if they were there.
//   - What goes wrong with plugins it tells before a session's events can be
//     listened to, or only in its log; MCP servers that do not start, only when asked.
package opencode
