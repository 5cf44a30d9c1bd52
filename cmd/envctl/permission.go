package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/agentenv-dev/agentenv/environment"
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
	// workspace is where the agent works; its paths are shown relative to that.
	workspace atomic.Pointer[string]

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
		if isTerminal(a.in) && a.err.terminal {
			policy = permissionAsk
		}
	case permissionAsk, permissionAllow, permissionDeny:
	default:
		return nil, usagef("--permission: there is no %q; choose ask, allow or deny", policy)
	}
	if policy == permissionAsk && a.err.terminal {
		a.out.inBackground(a.hurry) // whose reader may wait for the answer, too
	}
	answer := &answerer{app: a, policy: policy, lines: make(chan string)}
	if isTerminal(a.in) {
		answer.terminal, _ = a.in.(*os.File) // as isTerminal says
	}
	return answer, nil
}

// inside says in which sandbox the agent works.
func (a *answerer) inside(env *environment.Environment) {
	workspace := env.Primitive().Paths().Workspace
	a.workspace.Store(&workspace)
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
		return req.Allow()
	case permissionDeny:
		a.printer.denies()
		return req.Reject("No user is present to allow this; the user can allow it with --permission allow.")
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
	if f, ok := formOf(req); ok {
		return a.fill(ctx, req, f)
	}
	var workspace string
	if at := a.workspace.Load(); at != nil {
		workspace = *at
	}
	var decided runnerscripts.PermissionDecision
	left, ok := a.put(ctx, req, permissionPrompt(req, workspace), func(line string) (err error) {
		decided, err = choose(req.Options, line)
		return err
	})
	if !ok {
		return left
	}
	return decided
}

// put shows a prompt until an answer is understood. Without one it reports false, and
// what that means for the request.
func (a *answerer) put(ctx context.Context, req runnerscripts.PermissionRequest, about prompt, understand func(line string) error) (left runnerscripts.PermissionDecision, ok bool) {
	if a.terminal != nil {
		if typed := a.typedAhead(); len(typed) > 0 {
			if !bytes.HasSuffix(typed, []byte("\n")) {
				fmt.Fprintln(a.app.err) // after its echo
			}
			_ = a.app.err.println(dim("what was typed before this question was not used"))
		}
	}
	a.printer.question(about)
	defer a.printer.answered()
	for {
		line, ok := a.line(ctx)
		if !ok && ctx.Err() != nil { // permission_resolved will say whether it was the time-out
			_ = a.app.err.println(plain("\n"), dim("withdrawn: an answer is no longer awaited"))
			return left, false
		}
		if !ok {
			fmt.Fprintln(a.app.err)
			return req.Reject("The user has left."), false
		}
		err := understand(line)
		if err == nil {
			return left, true
		}
		a.printer.again(err)
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

// read passes on the lines of an input that is no terminal. No user reads the
// questions there: the next line answers the next question, whenever it came. A read
// cannot be cancelled, so this one goroutine lasts as long as the program.
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

// typedAhead removes from the terminal what the user typed before a question is shown,
// which cannot be meant for it. That may be a line without its end, as when a question
// was withdrawn while the user typed; only a raw terminal returns it.
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

// rejection is the index of the option that an empty answer chooses, or -1.
func rejection(options []runnerscripts.PermissionOption) int {
	shown := options[:min(len(options), mostOptions)]
	for _, kind := range []runnerscripts.PermissionKind{runnerscripts.RejectOnce, runnerscripts.RejectAlways} {
		if i := slices.IndexFunc(shown, func(o runnerscripts.PermissionOption) bool { return o.Kind == kind }); i >= 0 {
			return i
		}
	}
	return -1
}

// choose understands the number of an option, y and n, nothing as a refusal, and anything
// longer as the reason of one. What y and n mean is decided by the kinds of the options alone.
func choose(options []runnerscripts.PermissionOption, line string) (runnerscripts.PermissionDecision, error) {
	switch strings.ToLower(line) {
	case "":
		if i := rejection(options); i >= 0 {
			return runnerscripts.PermissionDecision{OptionID: options[i].OptionID, Kind: options[i].Kind}, nil
		}
		return runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}, nil
	case "y", "yes":
		return only(options, runnerscripts.AllowOnce, line)
	case "n", "no":
		return only(options, runnerscripts.RejectOnce, line)
	}
	for i, o := range options[:min(len(options), mostOptions)] {
		switch {
		case line != strconv.Itoa(i+1):
		case o.Kind.Effect() == "":
			return runnerscripts.PermissionDecision{}, fmt.Errorf("%s cannot be chosen, because its effect is not known", line)
		default:
			return runnerscripts.PermissionDecision{OptionID: o.OptionID, Kind: o.Kind}, nil
		}
	}
	if len(line) < 3 {
		return runnerscripts.PermissionDecision{}, fmt.Errorf("%q is no answer to this", line)
	}
	return runnerscripts.PermissionRequest{Options: options}.Reject(line), nil
}

// only chooses the one option of a kind.
func only(options []runnerscripts.PermissionOption, kind runnerscripts.PermissionKind, line string) (runnerscripts.PermissionDecision, error) {
	var found []runnerscripts.PermissionOption
	for _, o := range options {
		if o.Kind == kind {
			found = append(found, o)
		}
	}
	switch {
	case len(options) == 0:
		return runnerscripts.PermissionDecision{Kind: kind}, nil
	case len(found) == 1:
		return runnerscripts.PermissionDecision{OptionID: found[0].OptionID, Kind: kind}, nil
	case len(found) == 0:
		return runnerscripts.PermissionDecision{}, fmt.Errorf("%q is no answer to this, because no option is to %s; type a number", line, kind.Effect())
	}
	return runnerscripts.PermissionDecision{}, fmt.Errorf("%q is no answer to this, because %d options are to %s; type a number", line, len(found), kind.Effect())
}
