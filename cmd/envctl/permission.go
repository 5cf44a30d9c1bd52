package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The values of --permission.
const (
	permissionAsk   = "ask"
	permissionAllow = "allow"
	permissionDeny  = "deny"
)

// answerer decides what the agent may do.
type answerer struct {
	app     *app
	policy  string
	printer printer

	asking   sync.Mutex // one question at a time
	terminal *os.File   // where a person reads the questions; nil: the answers are not typed
	left     bool       // the person has ended the input
	once     sync.Once
	lines    chan string // of an input that is no terminal
}

func (a *app) newAnswerer(policy string) (*answerer, error) {
	switch policy {
	case "":
		policy = permissionDeny
		if isTerminal(a.in) && isTerminal(a.err) {
			policy = permissionAsk
		}
	case permissionAsk, permissionAllow, permissionDeny:
	default:
		return nil, usagef("give --permission as ask, allow or deny, not %q", policy)
	}
	answer := &answerer{app: a, policy: policy, lines: make(chan string)}
	if isTerminal(a.in) {
		answer.terminal, _ = a.in.(*os.File) // as isTerminal says
	}
	return answer, nil
}

// timeout is how long a question may stand: a person is given time.
func (a *answerer) timeout() time.Duration {
	if a.policy == permissionAsk {
		return 10 * time.Minute
	}
	return 0
}

// decide answers one request.
func (a *answerer) decide(ctx context.Context, req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
	switch a.policy {
	case permissionAllow:
		return runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}
	case permissionDeny:
		return runnerscripts.PermissionDecision{
			Kind:    runnerscripts.RejectOnce,
			Message: "Nobody is there to allow this; the user can allow it with --permission allow.",
		}
	}
	return a.ask(ctx, req)
}

// ask puts the question on the terminal. No answer leaves the request to its
// time-out, which denies.
func (a *answerer) ask(ctx context.Context, req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
	a.asking.Lock()
	defer a.asking.Unlock()
	if ctx.Err() != nil {
		return runnerscripts.PermissionDecision{}
	}
	note := newStyle(a.app.err)
	if a.terminal != nil {
		if typed := a.typedAhead(); len(typed) > 0 {
			if !bytes.HasSuffix(typed, []byte("\n")) {
				fmt.Fprintln(a.app.err) // after its echo
			}
			fmt.Fprintln(a.app.err, note.dim("what was typed before this question was not used"))
		}
	}
	for {
		a.printer.question(req)
		line, ok := a.line(ctx)
		if !ok && ctx.Err() != nil { // permission_resolved will say whether it was the time-out
			fmt.Fprintln(a.app.err, "\n"+note.dim("withdrawn: an answer is no longer awaited"))
			return runnerscripts.PermissionDecision{}
		}
		if !ok {
			fmt.Fprintln(a.app.err)
			return runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "The user has left."}
		}
		if d, ok := choose(req.Options, line); ok {
			return d
		}
		if line != "" {
			fmt.Fprintf(a.app.err, "%q is no answer to this:\n", line)
		}
	}
}

// line returns the next line of the input, unless ctx is done before or the input
// has ended.
func (a *answerer) line(ctx context.Context) (line string, ok bool) {
	if a.terminal != nil {
		return a.typed(ctx)
	}
	a.once.Do(func() { go a.read() })
	select {
	case <-ctx.Done():
		return "", false
	case line, ok = <-a.lines:
		return line, ok
	}
}

// read passes the lines of an input that is no terminal on, where nobody reads the
// questions: the next line is for the next one, whenever it came. A read cannot be
// broken off, so this one goroutine lasts as long as the program.
func (a *answerer) read() {
	defer close(a.lines)
	r := bufio.NewReader(a.app.in)
	for {
		line, err := r.ReadString('\n')
		if line != "" { // the last one may lack its end
			a.lines <- strings.TrimSpace(line)
		}
		if err != nil {
			return
		}
	}
}

// typed returns the next line of the terminal. It reads only what is there: a read
// that outlived its question would take what is typed for another one.
func (a *answerer) typed(ctx context.Context) (line string, ok bool) {
	done, end, err := os.Pipe()
	if err != nil {
		return "", false
	}
	defer done.Close()
	defer end.Close()
	defer context.AfterFunc(ctx, func() { end.Close() })()
	var text []byte
	for !a.left && !bytes.HasSuffix(text, []byte("\n")) {
		if !readable(nil, a.terminal, done) || ctx.Err() != nil {
			return "", false
		}
		text, err = a.more(text)
		a.left = err != nil
	}
	return strings.TrimSpace(string(text)), len(text) > 0
}

// typedAhead takes what was typed before a question is shown, which cannot be meant
// for it, out of the terminal. That may be a line without its end, as when a question
// was withdrawn from under somebody's hands; only a raw terminal gives it out.
func (a *answerer) typedAhead() (text []byte) {
	fd := int(a.terminal.Fd())
	// In the background keys are for the shell, and the terminal is as it wants it.
	if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil && group != unix.Getpgrp() {
		return nil
	}
	if before, err := term.MakeRaw(fd); err == nil {
		defer func() { _ = term.Restore(fd, before) }() // fails only if it is gone
	}
	var err error
	for err == nil && readable(&unix.Timeval{}, a.terminal) {
		text, err = a.more(text) // an error comes again when the answer is read
	}
	return text
}

// more reads once from the terminal.
func (a *answerer) more(text []byte) ([]byte, error) {
	buf := make([]byte, 4096)
	n, err := a.terminal.Read(buf)
	return append(text, buf[:n]...), err
}

// readable waits until one of the files can be read, and reports whether the first
// can. It uses select because on macOS poll knows no terminals.
func readable(timeout *unix.Timeval, files ...*os.File) bool {
	for {
		var set unix.FdSet
		last := 0
		for _, f := range files {
			set.Set(int(f.Fd()))
			last = max(last, int(f.Fd()))
		}
		_, err := unix.Select(last+1, &set, nil, nil, timeout)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && set.IsSet(int(files[0].Fd()))
		}
	}
}

// choose understands the number of an option, y and n, and anything longer as
// the reason of a refusal.
func choose(options []runnerscripts.PermissionOption, line string) (runnerscripts.PermissionDecision, bool) {
	switch strings.ToLower(line) {
	case "":
		return runnerscripts.PermissionDecision{}, false
	case "y", "yes":
		return runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}, true
	case "n", "no":
		return runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}, true
	}
	for i, o := range options {
		if line == fmt.Sprint(i+1) {
			return runnerscripts.PermissionDecision{OptionID: o.OptionID}, true
		}
	}
	if len(line) < 3 {
		return runnerscripts.PermissionDecision{}, false
	}
	return runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: line}, true
}
