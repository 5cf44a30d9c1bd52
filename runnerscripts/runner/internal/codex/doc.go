// Package codex drives Codex through "codex app-server", which speaks JSON-RPC over standard input
// and output. Only this package knows that program: its requests and notifications, its settings,
// and the format of its rollouts, which is Codex's name for transcripts. Facts about Codex that
// shape the code:
//
//   - Codex chooses the ID of a conversation, which it calls a thread. The driver stores the
//     thread of a session in a file beside the rollouts.
//   - Its messages have no "jsonrpc" field. Each process numbers its own requests from 0,
//     independently of the client's requests.
//   - A turn can be interrupted only after its start, not right after the reply to the request
//     for it. A command that runs during an interrupt continues as a background terminal.
//   - A rollout holds the finished items nearly in the form of the live ones. It has no items
//     for rejected or interrupted tool calls: the driver finds those in the recorded exchange
//     with the model.
//   - Token counts are cumulative over the thread, also after a resume.
//   - Codex runs commands in its own sandbox. The session's sandbox makes it unnecessary, and
//     it does not work in every container.
//   - Codex runs a hook only after a user has reviewed it, for which it stores the hook's hash.
//     Codex lists the hashes, and accepts them from the client that starts the thread.
//   - Tool calls that a hook or a command rule refuses appear only in the exchange with the
//     model, in no conversation.
//   - Codex has no slash commands for clients; this package expands them.
//   - MCP servers get only those variables of Codex's environment that their settings name.
package codex
