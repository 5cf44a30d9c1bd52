// Package term writes to a terminal: text in styles, tables, Markdown, and a last line that says
// what goes on. Where the output is no terminal it passes every byte on unchanged. It knows
// nothing of agents.
//
// Where to look, by file:
//
//	output.go    Output: standard output or standard error; spans, rows and tables
//	status.go    Status: the last line
//	wrap.go      how wide text is, and where a line ends
//	markdown.go  what agents write, drawn
//	backlog.go   writes that do not wait for the reader of a pipe
package term
