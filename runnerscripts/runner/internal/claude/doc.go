// Package claude drives Claude Code. Only this package knows the program: its flags, its
// stream-json control protocol, and the format of its transcripts. Facts that shape the code:
//
//   - One message of the model comes as several "assistant" lines, one for each
//     content block, all with the id of the message. The number of the block in
//     the message, not in the line, makes the ids of blocks.
//   - Usage on those lines is a snapshot of the message's start. The cost of a
//     query is in the "result" line, cumulative for the process, and after a
//     resume for the whole session.
//   - A query may have several result lines: a subagent that works in the
//     background starts another turn when it ends. The query ends in state "idle".
//   - Its settings, hooks and MCP servers in the workspace are commands that run
//     without asking, so they are off unless the workspace is trusted. A profile
//     is written as the user's settings, below the session's home, which count.
//   - It silently ignores settings that it does not understand, even a deny
//     rule. So the driver asks it which settings it has accepted.
//   - It leaves out an MCP server with the same command as another one. Before
//     the first turn it waits up to half a minute for a server that says nothing.
//   - Its own files, such as plans, memory and long outputs, are outside the
//     workspace. It uses them without asking, so the guard does not see them.
//
// Where to look, by file:
//
//	driver, recipe             Setup, Start, Transcript; how the program is installed
//	profile, plugins, extras   a profile as files and flags, and what the workspace may add (profileFlags);
//	                           plugins of marketplaces; MCP servers and plugins that do not start
//	accepted                   refuses a profile that the program did not accept
//	launch, process            the command line and the environment; signals
//	conversation, control      prompts, interrupts, the process; control requests
//	protocol, reader           the lines of the program and their effects
//	translator, live, tools    events of messages, of pieces, of tool calls
//	subagent, permission       subagents; permission requests
//	result, budget             the end and the cost of a turn; the limit of a query
//	transcript, history        files of the transcript; its events
package claude
