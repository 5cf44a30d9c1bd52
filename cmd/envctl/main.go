// Command envctl runs coding agents in sandboxes and looks into them.
//
// Where to look: root.go lists the commands, most of them in the file of their name; create.go
// also has rm, copy.go and copy_out.go are cp, list.go is ls, and checkpoints.go has log, rewind,
// fork and compare. target.go, make.go, agent.go, workspace.go and logging.go have the flags that
// commands share; find.go finds a sandbox by its ID or name, and find_session.go the session that
// a word means.
// view.go shows what happens in queries, printer*.go what an event looks like, permission.go and
// form.go ask the user; result.go brings changes out. served.go and served_session.go have what the
// commands do with --server. internal/term writes to the terminal,
// package internal/acpserver serves an editor.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	_ "github.com/agentenv-dev/agentenv/primitives/docker" // the types of sandbox of --sandbox
	"github.com/agentenv-dev/agentenv/primitives/local"
	_ "github.com/agentenv-dev/agentenv/primitives/modal"
	_ "github.com/agentenv-dev/agentenv/primitives/ssh"
)

func main() {
	end := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		end = append(end, syscall.SIGHUP)
	}
	ctx, hurry := interrupts(hurryTimeout, exitUnended, end...)
	// A reader of the output that goes away must not kill envctl before it has
	// ended its sandbox. Notify, not Ignore: commands would inherit the latter.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	endOrphans := local.ReapOrphans()
	a := newApp(os.Stdin, os.Stdout, os.Stderr)
	a.forceExit = hurry
	code := a.execute(ctx, os.Args[1:])
	endOrphans()
	os.Exit(code)
}

// interrupted is the cause of a context that a signal has cancelled. It wraps context.Canceled.
type interrupted struct{ os.Signal }

func (i interrupted) Error() string {
	if sig, ok := i.Signal.(syscall.Signal); ok && sig != syscall.SIGINT {
		return "interrupted by " + unix.SignalName(sig)
	}
	return "interrupted"
}

// code returns the exit status that a shell shows for a program that the signal has ended.
func (i interrupted) code() int {
	if sig, ok := i.Signal.(syscall.Signal); ok {
		return 128 + int(sig)
	}
	return exitInterrupted
}

func (i interrupted) Unwrap() error { return context.Canceled }

// again returns what the user must do to interrupt once more.
func (i interrupted) again() string {
	if i.Signal == os.Interrupt {
		return "Ctrl-C again"
	}
	return "a second signal"
}

// interruption returns the signal that cancelled ctx, os.Interrupt if there was another cause.
func interruption(ctx context.Context) interrupted {
	why, ok := errors.AsType[interrupted](context.Cause(ctx))
	if !ok {
		why = interrupted{os.Interrupt}
	}
	return why
}

// hurryTimeout is how long what runs may take to end after the second signal: only to end the
// sandbox.
const hurryTimeout = 5 * time.Second

// interrupts returns a context that is cancelled at the first of the signals, and a channel that
// is closed at the second one, when envctl must not wait for a graceful end. After the second one
// it calls exit, when timeout is over, whatever still runs. A third signal kills the program.
func interrupts(timeout time.Duration, exit func(interrupted), signals ...os.Signal) (ctx context.Context, hurry <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(context.Background())
	second := make(chan struct{})
	c := make(chan os.Signal, 2)
	signal.Notify(c, signals...)
	go func() {
		why := interrupted{<-c}
		cancel(why)
		for <-c == syscall.SIGHUP {
			// A terminal that closes sends more than one signal, and nobody has asked again.
		}
		signal.Stop(c)
		close(second)
		time.AfterFunc(timeout, func() { exit(why) })
	}()
	return ctx, second
}

// exitUnended exits although something still runs.
func exitUnended(why interrupted) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		fmt.Fprintf(os.Stderr, "envctl: %v, and what it ran did not end in %v: 'envctl ls' shows sandboxes that are left\n", why, hurryTimeout)
	}()
	select {
	case <-said:
	case <-time.After(time.Second): // nobody reads standard error
	}
	os.Exit(why.code())
}
