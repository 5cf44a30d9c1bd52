// Package runnerscripts defines what crosses the boundary between the environment and the runner
// scripts that work inside a sandbox: the names of the scripts, their requests, and the events they
// print.
//
// A script reads JSON lines on standard input and prints JSON lines on standard
// output, UTF-8, one object a line, of any length. Nothing else may touch
// standard output; standard error is for diagnostics.
//
//	setup-session    reads a [SetupRequest]; prints a [Result]
//	execute-query    reads a [QueryRequest], then [Control] lines; prints [Event]
//	                 lines, and a [Result] when standard input ends or it is shut down
//	read-transcript  reads a [TranscriptRequest]; prints the [Event] lines of the
//	                 conversation if asked, then a [Result] whose data is a [Transcript]
//
// A script that succeeds prints a result with "ok":true and exits with status 0. A script that
// fails prints "ok":false with the reason and exits with status 1. A failed query is only an event,
// and the script continues. A script that ends without a result has died, whatever its exit status.
//
// The default scripts are subcommands of envrunner. Any program that keeps this
// protocol can replace one of them, a shell script of ten lines included. Where
// the Agent Client Protocol (https://agentclientprotocol.com) has a concept, its
// name and the shape of its payload are used.
//
// Beside the standard library the package needs only package primitives. Import it to write a
// runner script or to read events; the environment uses it, too.
//
// Where to look: request.go has the requests and the control lines, profile.go the profile in
// them and profile_check.go its rules; event.go has the event, table.go all types of events
// with their payloads, payload.go and value.go these; recipe.go says what an agent needs and
// can do, scenario.go what the scripted one plays; errors.go has the errors of scripts and
// queries. encode.go writes lines; lines.go, decode.go and decode_request.go read them,
// envelope.go and scan.go without decoding them.
package runnerscripts
