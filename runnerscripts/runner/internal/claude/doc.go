// Package claude drives Claude Code. It is the only place that knows this
// program: its flags, its stream-json control protocol, and the format of its
// transcripts. Facts about it that shape the code:
//
//   - One message of the model comes as several "assistant" lines, one for each
//     content block, all with the id of the message. The number of the block in
//     the message, not in the line, makes the ids of blocks.
//   - Usage on those lines is a snapshot of the message's start. What a query
//     cost is in the "result" line, there cumulative for the process, and after a
//     resume for the whole session.
//   - A query may have several result lines: a subagent that works in the
//     background wakes the agent up once more. The end is the state "idle".
//   - Its settings, hooks and MCP servers in the workspace are commands that run
//     without asking, so they are off unless the workspace is trusted.
package claude
