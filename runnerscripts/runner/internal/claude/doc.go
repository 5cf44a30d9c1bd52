// Package claude drives Claude Code. Only this package knows the program: its flags, its
// stream-json control protocol, and the format of its transcripts. Facts that shape the code:
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
//     without asking, so they are off unless the workspace is trusted. A profile
//     is written as the user's settings, below the session's home, which count.
//   - It passes over in silence what it does not understand in settings, a rule
//     that denies included. So it is asked what it took.
//   - It leaves out an MCP server that has the same command as another one, and
//     waits up to half a minute for one that says nothing before the first turn.
//   - Its own files, such as plans, memory and long outputs, are outside of the
//     workspace; it does not ask for those, so the guard does not meet them.
//
// Where to look, by file:
//
//	driver, recipe             Setup, Start, Transcript; how the program is installed
//	profile, plugins, extras   a profile as files and flags, and what the workspace may add (profileFlags);
//	                           plugins of marketplaces; MCP servers and plugins that do not start
//	accepted                   refuses a profile that the program did not take
//	launch, process            the command line and the environment; signals
//	conversation, control      prompts, interrupts, the process; control requests
//	protocol, reader           the lines of the program; what each does
//	translator, live, tools    events of messages, of pieces, of tool calls
//	subagent, permission       subagents; permission requests
//	result, budget             the end and the cost of a turn; the limit of a query
//	transcript, history        files of the transcript; its events
package claude
