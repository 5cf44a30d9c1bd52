package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/closest"
	"github.com/agentenv-dev/agentenv/internal/form"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The values of --permission.
const (
	permissionAsk   = "ask"
	permissionAllow = "allow"
	permissionDeny  = "deny"
)

// mostFlags limits the advice of rules. A command with more parts is a program.
const mostFlags = 5

// answerer answers the permission requests of an agent.
type answerer struct {
	app     *app
	policy  string
	printer printer
	// workspace is the path of the agent's workspace. Paths in it are shown relative to it.
	workspace atomic.Pointer[string]
	// config says which rules decide; nil if --allow cannot add to them.
	config atomic.Pointer[environment.Config]
	// always means that answers may hold for later sessions.
	always atomic.Bool

	asking   sync.Mutex // one question at a time
	terminal *os.File   // on which the user types answers; nil if the input is no terminal
	left     bool       // the input has ended
	once     sync.Once
	lines    chan string // of an input that is no terminal
}

func (a *app) newAnswerer(policy string) (*answerer, error) {
	switch policy {
	case "":
		policy = permissionDeny
		if term.IsTerminal(a.in) && a.err.Terminal {
			policy = permissionAsk
		}
	case permissionAsk, permissionAllow, permissionDeny:
	default:
		return nil, usagef("--permission: there is no %q; choose ask, allow or deny", policy)
	}
	if policy == permissionAsk && a.err.Terminal {
		a.out.InBackground(a.forceExit) // the reader of the output may wait for the answer, too
	}
	answer := &answerer{app: a, policy: policy, lines: make(chan string)}
	if term.IsTerminal(a.in) {
		answer.terminal, _ = a.in.(*os.File) // isTerminal has checked the type
	}
	return answer, nil
}

// inside sets the sandbox in which the agent works, and its configuration.
func (a *answerer) inside(env *environment.Environment, cfg environment.Config) {
	workspace := env.Primitive().Paths().Workspace
	a.workspace.Store(&workspace)
	a.config.Store(&cfg)
	a.always.Store(env.KeepsAnswers())
}

// timeout returns how long a request may wait for an answer. A user at a terminal gets more
// time; zero means the default.
func (a *answerer) timeout() time.Duration {
	if a.policy == permissionAsk {
		return 10 * time.Minute
	}
	return 0
}

// decide answers one request.
func (a *answerer) decide(ctx context.Context, req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
	switch {
	case a.policy == permissionAllow, a.policy == permissionDeny && req.MayDeny != "": // which AllowAll rejects, and no flag allows
		return environment.AllowAll(ctx, req)
	case a.policy == permissionDeny:
		flags := a.allowing(req)
		a.printer.denies(req.ID, flags)
		return req.Reject("No user is present to allow this; the user can allow it with " + flags + ".")
	}
	return a.ask(ctx, req)
}

// allowing returns the flags that would have allowed a request: rules if they can, because --permission allows everything.
func (a *answerer) allowing(req runnerscripts.PermissionRequest) string {
	var workspace string
	if at := a.workspace.Load(); at != nil {
		workspace = *at
	}
	var flags []string
	if cfg := a.config.Load(); cfg != nil {
		for _, rule := range cfg.AllowRules(workspace, req) {
			flags = append(flags, "--allow "+shellQuoted(rule))
		}
	}
	if len(flags) == 0 || len(flags) > mostFlags {
		return "--permission " + permissionAllow
	}
	return strings.Join(flags, " ")
}

// ask asks the user on the terminal. Without an answer the request times out and is denied.
func (a *answerer) ask(ctx context.Context, req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
	a.asking.Lock()
	defer a.asking.Unlock()
	if ctx.Err() != nil {
		return runnerscripts.PermissionDecision{}
	}
	if f, ok := form.Of(req); ok {
		return a.fill(ctx, req, f)
	}
	var workspace string
	if at := a.workspace.Load(); at != nil {
		workspace = *at
	}
	var decided runnerscripts.PermissionDecision
	left, ok := a.put(ctx, req, permissionPrompt(req, workspace, a.always.Load()), func(line string) (err error) {
		decided, err = choose(req.Options, line)
		decided.By = userName()
		if decided.Scope != "" && !a.always.Load() {
			err = fmt.Errorf("%q needs permissions in the configuration, and a folder or repository as the workspace", line)
		}
		return err
	})
	if !ok {
		return left
	}
	return decided
}

// userName returns the name of this user, for the audit log: answers of nobody have none.
func userName() string {
	u, err := user.Current()
	if err != nil {
		return "user " + strconv.Itoa(os.Getuid())
	}
	return u.Username
}

// put shows a prompt until understand accepts an answer. If there is none, ok is false and left
// is the decision for the request.
func (a *answerer) put(ctx context.Context, req runnerscripts.PermissionRequest, about prompt, understand func(line string) error) (left runnerscripts.PermissionDecision, ok bool) {
	if a.terminal != nil {
		if typed := a.typedAhead(); len(typed) > 0 {
			if !bytes.HasSuffix(typed, []byte("\n")) {
				fmt.Fprintln(a.app.err) // ends the echo of the incomplete line
			}
			_ = a.app.err.Println(term.Dim("what was typed before this question was not used"))
		}
	}
	a.printer.question(about)
	defer a.printer.answered()
	for {
		line, ok := a.line(ctx)
		if !ok && ctx.Err() != nil { // the permission_resolved event says whether it was a timeout
			_ = a.app.err.Println(term.Plain("\n"), term.Dim("withdrawn: an answer is no longer awaited"))
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

// line returns the next line of the input. ok is false if ctx is done first or the input has
// ended.
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

// read sends the lines of an input that is no terminal to a.lines. No user reads the questions
// there: the next line answers the next question, even if it came earlier. A read cannot be
// cancelled, so the goroutine lasts as long as the program.
func (a *answerer) read() {
	defer close(a.lines)
	r := bufio.NewReader(a.app.in)
	for {
		line, err := r.ReadString('\n')
		if line != "" { // the last line may lack its line break
			a.lines <- strings.TrimSpace(line)
		}
		if err != nil {
			return
		}
	}
}

// typed returns the next line of the terminal. It reads only when input is available: a read
// that outlived its question would take the answer to the next one.
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

// typedAhead removes the input that the user typed before a question is shown, because it cannot
// be an answer to the question. The input may be an incomplete line, for example if a question
// was withdrawn while the user typed. Only a raw terminal returns such a line.
func (a *answerer) typedAhead() (text []byte) {
	fd := int(a.terminal.Fd())
	// In the background the input is for the shell, which also sets the mode of the terminal.
	if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil && group != unix.Getpgrp() {
		return nil
	}
	if before, err := xterm.MakeRaw(fd); err == nil {
		defer func() { _ = xterm.Restore(fd, before) }() // fails only if the terminal is gone
	}
	var err error
	for err == nil && readable(&unix.Timeval{}, a.terminal) {
		text, err = a.more(text) // the read of the answer reports the error again
	}
	return text
}

// more reads once from the terminal and appends the input to text.
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

// rejection returns the index of the option that an empty answer chooses, or -1.
func rejection(options []runnerscripts.PermissionOption) int {
	shown := options[:min(len(options), mostOptions)]
	for _, kind := range []runnerscripts.PermissionKind{runnerscripts.RejectOnce, runnerscripts.RejectAlways} {
		if i := slices.IndexFunc(shown, func(o runnerscripts.PermissionOption) bool { return o.Kind == kind }); i >= 0 {
			return i
		}
	}
	return -1
}

// The answers that hold in later sessions too.
const (
	answerAlways = "always"
	answerNever  = "never"
)

// choose parses an answer: the number of an option, y or allow, n or reject, always or never, nothing for a rejection, or
// a longer text as the reason for a rejection. Only the kinds of the options decide what y and n mean.
func choose(options []runnerscripts.PermissionOption, line string) (runnerscripts.PermissionDecision, error) {
	switch strings.ToLower(line) {
	case "":
		if i := rejection(options); i >= 0 {
			return runnerscripts.PermissionDecision{OptionID: options[i].OptionID, Kind: options[i].Kind}, nil
		}
		return runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}, nil
	case "y", "yes", answerAllow:
		return only(options, runnerscripts.AllowOnce, line)
	case "n", "no", answerReject, permissionDeny:
		return only(options, runnerscripts.RejectOnce, line)
	case answerAlways, answerNever:
		kind := runnerscripts.AllowOnce
		if strings.EqualFold(line, answerNever) {
			kind = runnerscripts.RejectOnce
		}
		d, err := only(options, kind, line)
		d.Scope = runnerscripts.ScopeAlways
		return d, err
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
	if name := closest.Name(line, []string{answerAllow, answerReject, answerAlways, answerNever}); name != "" {
		return runnerscripts.PermissionDecision{}, fmt.Errorf("%q is no answer to this: did you mean %s?", line, name)
	}
	return runnerscripts.PermissionRequest{Options: options}.Reject(line), nil
}

// only chooses the option of a kind. It fails unless there is exactly one, or there are no
// options at all.
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
