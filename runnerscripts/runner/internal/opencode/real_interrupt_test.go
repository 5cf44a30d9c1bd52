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

func TestFailuresLeaveTheSessionUsable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = modeAuto
	f.Session.Agent.AllowOutside = true
	var steps []step
	for _, failure := range []struct {
		text    string
		status  int // 0 if the program retries: it does not report the status then
		retries int
	}{{"http-401", 401, 0}, {"http-529", 0, 2}} {
		steps = append(steps, step{failure.text, func(f *fixture, c *conversation) { f.failsWith(c, failure.text, failure.status, failure.retries) }})
	}
	f.each(t, f.start(), append(steps,
		step{"a file outside of the workspace, where that is allowed", func(f *fixture, c *conversation) {
			file := filepath.Join(f.TempDir(), "outside.txt")
			f.Prompt(c, "write-file `"+file+"`")
			if _, err := os.Stat(file); err != nil {
				f.Error(err)
			}
		}},
	))
}

func (f *fixture) failsWith(c *conversation, text string, status, retries int) {
	f.Helper()
	_, err := c.Prompt(f.Context(), "q", text)
	failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != status || !strings.Contains(failure.Message, "scripted failure") {
		f.Fatalf("error %#v", err)
	}
	if status == http.StatusUnauthorized && !strings.Contains(failure.Message, "give the agent a key") {
		f.Errorf("error %v", err)
	}
	if text := agenttest.Said(f, f.Events()); text != "" {
		f.Errorf("the agent said %q", text)
	}
	if logs := agenttest.Payloads[runnerscripts.Log](f, f.Events(), runnerscripts.TypeLog); len(logs) != retries {
		f.Errorf("logs: %+v", logs)
	}
	f.Prompt(c, "plain-text")
}

// TestEnds tests how a server ends, in one session, because each case needs a start.
func TestEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	info, err := os.Stat(addressFile(f.Session))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the password: %v, %v", info, err)
	}
	f.Prompt(c, "first plain-text")
	for _, p := range []step{
		{"a crash fails the query and the next one goes on", crashes},
		{"the end of the prompt's context ends it and the next one goes on", cancels},
		{"close ends a running query", closes},
	} {
		t.Run(p.name, func(t *testing.T) { p.check(f.in(t), c) })
	}
}

func crashes(f *fixture, c *conversation) {
	wait := f.PromptAsync(c, "run-command `touch asked`")
	req := f.Asked()
	first := c.server.proc.PID()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		f.Fatal(err)
	}
	if _, err := wait(); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "killed") {
		f.Errorf("error %v", err)
	}
	resolved := agenttest.Payloads[runnerscripts.PermissionResolved](f, f.Events(), runnerscripts.TypePermissionResolved)
	if len(resolved) != 1 || resolved[0].ID != req.ID || resolved[0].Kind != "" {
		f.Errorf("resolved: %+v", resolved)
	}
	f.Prompt(c, "remember")
	if second := c.server.proc.PID(); second == first {
		f.Error("the process did not change")
	}
	if text := agenttest.Said(f, f.Events()); !strings.Contains(text, "You said before: first plain-text") {
		f.Errorf("the agent said %q", text)
	}
}

func cancels(f *fixture, c *conversation) {
	ctx, cancel := context.WithCancel(f.Context())
	wait := make(chan error, 1)
	go func() {
		_, err := c.Prompt(ctx, "q", "slow-stream")
		wait <- err
	}()
	f.held(runnerscripts.TypeAgentMessage)
	cancel()
	if err := <-wait; !errors.Is(err, context.Canceled) {
		f.Errorf("error %v", err)
	}
	f.Prompt(c, "remember")
	if got := f.LastRequest().Texts; got[0] != "first plain-text" {
		f.Errorf("the model was sent %q", got)
	}
}

func closes(f *fixture, c *conversation) {
	wait := f.PromptAsync(c, "slow-stream")
	f.held(runnerscripts.TypeAgentMessage)
	if err := c.Close(); err != nil {
		f.Fatal(err)
	}
	if _, err := wait(); !agenttest.HasCode(err, runnerscripts.FailAgent) {
		f.Errorf("error %v", err)
	}
	agenttest.WaitForGroup(f, c.server.proc.PID())
	if _, err := c.Prompt(f.Context(), "q", "plain-text"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		f.Errorf("a prompt after close: %v", err)
	}
	if _, err := os.Stat(addressFile(f.Session)); !errors.Is(err, os.ErrNotExist) {
		f.Errorf("the file with the password: %v", err)
	}
}
