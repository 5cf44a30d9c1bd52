// Command envctl runs coding agents in sandboxes and looks into them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		end = append(end, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), end...)
	// A reader of the output that goes away must not kill envctl before it has
	// ended its sandbox. Notify, not Ignore: commands would inherit the latter.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	code := Execute(ctx, os.Stdin, os.Stdout, os.Stderr, os.Args[1:])
	stop()
	os.Exit(code)
}
