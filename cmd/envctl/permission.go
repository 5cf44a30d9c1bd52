package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

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

	asking sync.Mutex // one question at a time
	once   sync.Once
	lines  chan string
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
	return &answerer{app: a, policy: policy, lines: make(chan string)}, nil
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
	a.once.Do(func() { go a.read() })
	for {
		a.printer.question(req)
		select {
		case <-ctx.Done():
			return runnerscripts.PermissionDecision{}
		case line, ok := <-a.lines:
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
}

// read passes the lines of the terminal on. A read of a terminal cannot be
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
