// Package opencode drives OpenCode. It is the only place that knows this program:
// its flags and configuration, the HTTP API and the events of its server, and what
// it exports and imports. Facts about it that shape the code:
//
//   - A session has a server of its own, "opencode serve", on a loopback port with
//     a random password. It stays between prompts: a start takes seconds.
//   - Its events arrive about in order, not exactly: a request for permission may
//     overtake the tool call that it is for, and what a message became at its end
//     may overtake the pieces of it. So at the end of a query the messages are
//     read once more, and what the events did not tell is told then.
//   - A query is known by the id of the user's message, which this package chooses;
//     the answers name it as their parent. "idle" alone is no end: after an
//     interrupt it comes twice, the first time before the last message is written.
//   - It tries a failing API again for ever and says so only as a state, so the
//     driver counts.
//   - It has no permission mode but its agents ("build", "plan"); the modes that
//     allow more are answers that the driver gives by itself.
//   - Its configuration in the workspace has plugins and MCP servers, which are
//     commands that run without asking, so it is off unless the workspace is
//     trusted.
package opencode
