// Command envrunner is the program that works inside a sandbox: the runner scripts of package
// runnerscripts, and the guest that serves the sandbox to its host. Run "envrunner --help" for its
// commands.
//
// A script that fails prints a result with "ok":false and the reason, and exits with status 1. Any
// status but 0 and 1 means that there is no result: it is 2 for a wrong command line, and otherwise
// says what ended the program.
//
// Where to look: run.go chooses the command; setup.go, query.go and transcript.go are the three
// scripts; control.go takes prompts, interrupts and answers while a query runs, sink.go writes
// events; feed.go is the input of a query that outlives its host. guest.go serves a sandbox,
// guests.go ends one without a client after its grace period, housekeeping.go lists and removes the
// sandboxes of a machine. internal/AGENT drives one agent, internal/agent is the interface of these
// drivers, internal/queries the state machine of prompts and interrupts.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if mustHide(os.Args[1:]) { // before there is anything to read
		if err := hide(); err != nil {
			os.Stderr.WriteString("envrunner: " + err.Error() + "\n")
			os.Exit(exitFailed)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	// Without this, SIGPIPE would kill the runner when its reader is gone, before the runner can
	// end the agent. Do not use Ignore: children would inherit it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	stdin, err := newInput(os.Stdin)
	if err != nil {
		os.Stderr.WriteString("envrunner: " + err.Error() + "\n")
		os.Exit(exitUsage)
	}
	code := run(ctx, stdin, os.Stdout, os.Stderr, os.Args[1:])
	stop()
	os.Exit(code)
}
