// Package llmapi is a scripted model: an HTTP server on the loopback interface that speaks the
// APIs of model vendors. With it, tests run real coding agents without a key, costs or a
// network.
//
// A reply depends only on its request: on the scenario word in the last text of the user, on
// the number of tool results after it, and on the names of the offered tools. So auxiliary and
// parallel calls, a retry, and a conversation resumed in another process do not disturb it.
//
//	plain-text    says a few sentences in many small pieces
//	slow-stream   says the first half, then holds until [Server.Release]
//	think         thinks aloud, then answers
//	slow-think    the same, and holds in the middle of its thoughts
//	write-file    writes a file: "write-file `notes.txt`"
//	edit-file     replaces the line "old" by "new" in a file
//	run-command   runs a command: "run-command `go version`"
//	escalate      asks to run it outside the agent's own sandbox, if the agent supports that
//	call-tool     calls a tool by its name: "call-tool `add {"a":1}`"
//	two-tools     calls two tools in one message
//	subagent      delegates a task to a subagent, which runs a command
//	background    the same, without waiting for the subagent
//	ask-user      asks the user a question through the agent's own tool
//	plan          writes a plan, if the agent has a tool for it
//	say-text      says a text: "say-text `{"line":7}`"
//	remember      repeats the user's earlier texts
//	endless       calls tools forever
//	wake-up       starts a command in the background; once notified of its end, is endless
//	cut-short     says half a sentence, up to the token limit
//	filtered      the same, up to a content filter
//	broken        the same, up to an error in the stream
//	http-400      fails with an invalid request
//	http-401      fails, because the key is not accepted
//	http-529      fails, overloaded, each time
//	echo-key      fails, because the key is not accepted, and repeats the key
//
// The word may appear anywhere in the text; the text between backticks is its argument. A text
// without a scenario word is answered like plain-text. If the agent does not offer the tool of
// a scenario, the answer says so.
//
// A request with a history that the vendor would refuse is refused in the vendor's words (history.go),
// and [Server.Close] returns it.
//
// There is one file per API on top of one engine (scenario.go).
package llmapi
