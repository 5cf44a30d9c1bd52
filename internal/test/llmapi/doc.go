// Package llmapi is a scripted model: an HTTP server on the loopback interface
// that speaks the API of a model vendor, so that tests run real coding agents
// without a key, a cost or a network.
//
// A reply depends on nothing but its request: on the scenario word in the last
// text of the user, on the number of tool results that followed it, and on the
// names of the tools that the agent offers. So auxiliary and parallel calls, a
// retry, and a conversation resumed in another process do not disturb it.
//
//	plain-text    says a few sentences in many small pieces
//	slow-stream   says the first half, then holds until [Server.Release]
//	think         thinks aloud, then answers
//	slow-think    the same, and holds in the middle of its thoughts
//	write-file    writes a file: "write-file `notes.txt`"
//	edit-file     makes "new" of a line "old" in a file
//	run-command   runs a command: "run-command `go version`"
//	escalate      asks to run it outside the agent's own sandbox, where it has one
//	call-tool     calls a tool by its name: "call-tool `add {"a":1}`"
//	two-tools     calls two tools in one message
//	subagent      hands a task to a subagent, which runs a command
//	background    the same, and goes on without waiting for it
//	ask-user      asks the user a question through the agent's own tool
//	plan          writes a plan, where the agent has a tool for it
//	remember      repeats what the user said before
//	endless       calls tools for ever
//	wake-up       leaves a command in the background, and is endless when told of its end
//	cut-short     says half a sentence, up to the limit of tokens
//	filtered      the same, up to a filter of content
//	broken        the same, up to an error in the stream
//	http-400      fails with an invalid request
//	http-401      fails, because the key is not accepted
//	http-529      fails, overloaded, each time
//	echo-key      fails, because the key is not accepted, and repeats the key
//
// The word may stand anywhere in the text; what stands between backticks is its
// argument. A text without one is answered like plain-text. A scenario whose tool
// the agent does not offer answers in words that say so.
//
// There is one file per API over one engine (scenario.go).
package llmapi
