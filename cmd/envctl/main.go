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
	ctx, hurry := interrupts(end...)
	// A reader of the output that goes away must not kill envctl before it has
	// ended its sandbox. Notify, not Ignore: commands would inherit the latter.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	a := newApp(os.Stdin, os.Stdout, os.Stderr)
	a.hurry = hurry
	os.Exit(a.execute(ctx, os.Args[1:]))
}

// interrupts returns a context that is done at the first of the signals, and a channel
// that is closed at the second, when what would be awaited in good order is ended at
// once. A third one kills the program.
func interrupts(signals ...os.Signal) (ctx context.Context, hurry <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	second := make(chan struct{})
	c := make(chan os.Signal, 2)
	signal.Notify(c, signals...)
	go func() {
		<-c
		cancel()
		<-c
		signal.Stop(c)
		close(second)
	}()
	return ctx, second
}
