package opencode

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestInterruptLeavesTheSessionUsable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.each(f.start(), []step{
		{"in the middle of a text", func(f *fixture, c *conversation) {
			f.interruptsStream(c, "slow-stream", runnerscripts.TypeAgentMessage)
		}},
		{"in the middle of a thought", func(f *fixture, c *conversation) { f.interruptsStream(c, "slow-think", runnerscripts.TypeAgentThought) }},
		{"while it asks for permission", interruptsAQuestion},
		{"during a command", interruptsACommand},
		{"right after the prompt", func(f *fixture, c *conversation) {
			wait := f.promptAsync(c, "slow-stream")
			f.wait(agenttest.OfType(runnerscripts.TypeUserMessage))
			f.interrupted(c, wait)
			f.prompt(c, "plain-text")
		}},
		{"without a query", func(f *fixture, c *conversation) {
			if err := c.Interrupt(f.t.Context()); err != nil {
				f.t.Error(err)
			}
		}},
	})
}

// interrupted interrupts a query and waits for its end.
func (f *fixture) interrupted(c *conversation, wait func() (runnerscripts.QueryCompleted, error)) {
	f.t.Helper()
	if err := c.Interrupt(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		f.t.Fatalf("ended with %q, %v", done.StopReason, err)
	}
}

func (f *fixture) interruptsStream(c *conversation, scenario string, typ runnerscripts.EventType) {
	f.t.Helper()
	wait := f.promptAsync(c, scenario)
	f.held(typ)
	f.interrupted(c, wait)
	if text := agenttest.Said(f.t, f.events()); strings.Contains(text, "six") {
		f.t.Errorf("the agent said %q", text)
	}
	for range 2 { // a late end of the query must not end the next one
		if done := f.prompt(c, "plain-text"); done.StopReason != runnerscripts.StopEndTurn {
			f.t.Errorf("the next prompt ended with %q", done.StopReason)
		}
	}
}

func interruptsAQuestion(f *fixture, c *conversation) {
	wait := f.promptAsync(c, "run-command `touch asked`")
	req := f.asked()
	f.interrupted(c, wait)
	resolved := agenttest.Payloads[runnerscripts.PermissionResolved](f.t, f.events(), runnerscripts.TypePermissionResolved)
	if len(resolved) != 1 || resolved[0] != (runnerscripts.PermissionResolved{ID: req.ID, Reason: "cancelled"}) {
		f.t.Errorf("resolved: %+v", resolved)
	}
	if f.exists("asked") {
		f.t.Error("the command ran")
	}
}

func interruptsACommand(f *fixture, c *conversation) {
	if err := c.SetMode(f.t.Context(), modeAuto); err != nil {
		f.t.Fatal(err)
	}
	wait := f.promptAsync(c, "run-command `touch started; exec sleep 600`")
	f.wait(agenttest.OfType(runnerscripts.TypeToolCall))
	f.interrupted(c, wait)
}

func TestLimitsAndFailuresLeaveTheSessionUsable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.MaxTurns = 2
	f.session.Agent.PermissionMode = modeAuto
	f.session.Agent.AllowOutside = true
	var steps []step
	for _, failure := range []struct {
		text    string
		status  int // 0 if the program retries: it does not report the status then
		retries int
	}{{"http-400", 400, 0}, {"http-401", 401, 0}, {"http-529", 0, 2}} {
		steps = append(steps, step{failure.text, func(f *fixture, c *conversation) { f.failsWith(c, failure.text, failure.status, failure.retries) }})
	}
	f.each(f.start(), append(steps,
		step{"each query has its own limit of turns", limitsTurns},
		step{"a file outside of the workspace, where that is allowed", func(f *fixture, c *conversation) {
			file := filepath.Join(f.t.TempDir(), "outside.txt")
			f.prompt(c, "write-file `"+file+"`")
			if _, err := os.Stat(file); err != nil {
				f.t.Error(err)
			}
		}},
	))
}

func (f *fixture) failsWith(c *conversation, text string, status, retries int) {
	f.t.Helper()
	_, err := c.Prompt(f.t.Context(), "q", text)
	failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != status || !strings.Contains(failure.Message, "scripted failure") {
		f.t.Fatalf("error %#v", err)
	}
	if status == http.StatusUnauthorized && !strings.Contains(failure.Message, "give the agent a key") {
		f.t.Errorf("error %v", err)
	}
	if text := agenttest.Said(f.t, f.events()); text != "" {
		f.t.Errorf("the agent said %q", text)
	}
	if logs := agenttest.Payloads[runnerscripts.Log](f.t, f.events(), runnerscripts.TypeLog); len(logs) != retries {
		f.t.Errorf("logs: %+v", logs)
	}
	f.prompt(c, "plain-text")
}

func limitsTurns(f *fixture, c *conversation) {
	for range 2 {
		before := len(f.api.Requests())
		if done := f.prompt(c, "endless"); done.StopReason != runnerscripts.StopMaxRequests {
			f.t.Errorf("stop reason %q", done.StopReason)
		}
		// The program may have sent the next request before the query is stopped.
		if n := len(f.api.Requests()) - before; n < 2 || n > 3 {
			f.t.Errorf("%d requests", n)
		}
	}
	if done := f.prompt(c, "write-file"); done.StopReason != runnerscripts.StopEndTurn {
		f.t.Errorf("a query within the limit ended with %q", done.StopReason)
	}
}

// TestEnds tests how a server ends, in one session, because each case needs a start.
func TestEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	info, err := os.Stat(addressFile(f.session))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the password: %v, %v", info, err)
	}
	f.prompt(c, "first plain-text")
	for _, p := range []step{
		{"a crash fails the query and the next one goes on", crashes},
		{"the end of the prompt's context ends it and the next one goes on", cancels},
		{"close ends a running query", closes},
	} {
		t.Run(p.name, func(t *testing.T) { p.check(f.in(t), c) })
	}
}

func crashes(f *fixture, c *conversation) {
	wait := f.promptAsync(c, "run-command `touch asked`")
	req := f.asked()
	first := c.server.proc.PID()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		f.t.Fatal(err)
	}
	if _, err := wait(); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "killed") {
		f.t.Errorf("error %v", err)
	}
	resolved := agenttest.Payloads[runnerscripts.PermissionResolved](f.t, f.events(), runnerscripts.TypePermissionResolved)
	if len(resolved) != 1 || resolved[0].ID != req.ID || resolved[0].Kind != "" {
		f.t.Errorf("resolved: %+v", resolved)
	}
	f.prompt(c, "remember")
	if second := c.server.proc.PID(); second == first {
		f.t.Error("the process did not change")
	}
	if text := agenttest.Said(f.t, f.events()); !strings.Contains(text, "You said before: first plain-text") {
		f.t.Errorf("the agent said %q", text)
	}
}

func cancels(f *fixture, c *conversation) {
	ctx, cancel := context.WithCancel(f.t.Context())
	wait := make(chan error, 1)
	go func() {
		_, err := c.Prompt(ctx, "q", "slow-stream")
		wait <- err
	}()
	f.held(runnerscripts.TypeAgentMessage)
	cancel()
	if err := <-wait; !errors.Is(err, context.Canceled) {
		f.t.Errorf("error %v", err)
	}
	f.prompt(c, "remember")
	if got := f.lastRequest().Texts; got[0] != "first plain-text" {
		f.t.Errorf("the model was sent %q", got)
	}
}

func closes(f *fixture, c *conversation) {
	wait := f.promptAsync(c, "slow-stream")
	f.held(runnerscripts.TypeAgentMessage)
	if err := c.Close(); err != nil {
		f.t.Fatal(err)
	}
	if _, err := wait(); !agenttest.HasCode(err, runnerscripts.FailAgent) {
		f.t.Errorf("error %v", err)
	}
	agenttest.WaitForGroup(f.t, c.server.proc.PID())
	if _, err := c.Prompt(f.t.Context(), "q", "plain-text"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		f.t.Errorf("a prompt after close: %v", err)
	}
	if _, err := os.Stat(addressFile(f.session)); !errors.Is(err, os.ErrNotExist) {
		f.t.Errorf("the file with the password: %v", err)
	}
}
