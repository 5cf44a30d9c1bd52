// Package codex drives Codex through "codex app-server", which speaks JSON-RPC
// over standard input and output. It is the only place that knows this program:
// its requests and notifications, its settings, and the format of its rollouts,
// as it calls its transcripts. Facts about it that shape the code:
//
//   - It chooses the id of a conversation, a "thread", by itself. Which thread a
//     session has is in a file beside the rollouts.
//   - Its messages have no "jsonrpc" field; its own requests count from 0 in each
//     process, in a space of their own.
//   - A turn can be interrupted only from its start on, not from the reply to the
//     request for it. A command that ran then goes on, as a background terminal.
//   - A rollout holds the finished items nearly in the form of the live ones, but not
//     the tools that were rejected or interrupted: those are found in the requests to
//     the model.
//   - Token counts are cumulative over the thread, also after a resume.
//   - It has its own sandbox around commands, which the sandbox of the session
//     makes needless, and which does not work in every container.
//   - Hooks run only after a user has looked at them. It stores their hash for that,
//     lists the hash, and accepts it from the client that starts the thread.
//   - Calls that a hook or a rule about commands refuses appear in the requests to the
//     model alone, in no conversation.
//   - It has no slash commands of its own for clients; this package expands them.
//   - MCP servers get only the variables of its environment that their settings name.
package codex
