package acp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

func TestPermissionIsAnsweredByKindOrOption(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		decision runnerscripts.PermissionDecision
		want     string
	}{
		"allow once":    {runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}, "yes-1"},
		"allow always":  {runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways}, "yes-2"},
		"reject once":   {runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}, "no-1"},
		"reject always": {runnerscripts.PermissionDecision{Kind: runnerscripts.RejectAlways}, "no-2"},
		"by option":     {runnerscripts.PermissionDecision{OptionID: "yes-2"}, "yes-2"},
		"with a reason": {runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "not today"}, "no-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "")
			c := f.Start()
			wait := f.PromptAsync(c, "ask")
			req := f.Asked()
			if len(req.Options) != 4 || req.ToolCall.Title != "do it" || req.ToolCall.Status != runnerscripts.ToolPending {
				t.Errorf("request: %s", agenttest.Show(t, req))
			}
			if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{OptionID: "no-such"}); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
				t.Errorf("an unknown option: %v", err)
			}
			if err := c.Respond(t.Context(), req.ID, tt.decision); err != nil {
				t.Fatal(err)
			}
			if _, err := wait(); err != nil {
				t.Fatal(err)
			}
			if got := f.Said(); !strings.Contains(got, `"optionId":"`+tt.want+`"`) || !strings.Contains(got, tt.decision.Message) {
				t.Errorf("the agent got %s", got)
			}
			// The agent does not report the end of the call.
			if call := agenttest.Fold(t, f.Out.All()).Blocks[1].Tool; call.Status != runnerscripts.ToolFailed {
				t.Errorf("call: %s", agenttest.Show(t, call))
			}
		})
	}
}

func TestInterruptWithdrawsThePermissionRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := f.Start()
	wait := f.PromptAsync(c, "ask")
	req := f.Asked()
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	resolved := agenttest.Payloads[runnerscripts.PermissionResolved](t, f.Out.All(), runnerscripts.TypePermissionResolved)
	if len(resolved) != 1 || resolved[0] != (runnerscripts.PermissionResolved{ID: req.ID, Reason: "cancelled"}) {
		t.Errorf("resolved: %+v", resolved)
	}
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("an answer after it: %v", err)
	}
}

func TestARejectionThatInterruptsStopsTheQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := f.Start()
	wait := f.PromptAsync(c, "ask")
	req := f.Asked()
	decision := runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Interrupt: true}
	if err := c.Respond(t.Context(), req.ID, decision); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	// The agent ends its turn as soon as it has an answer, so the interrupt must come first.
	if got := f.Said(); strings.Contains(got, "selected") {
		t.Errorf("the agent got %s", got)
	}
	resolved := agenttest.Payloads[runnerscripts.PermissionResolved](t, f.Out.All(), runnerscripts.TypePermissionResolved)
	if len(resolved) != 1 || resolved[0] != (runnerscripts.PermissionResolved{ID: req.ID, Kind: runnerscripts.RejectOnce, Reason: "answered"}) {
		t.Errorf("resolved: %+v", resolved)
	}
	if err := c.Respond(t.Context(), req.ID, decision); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("an answer after it: %v", err)
	}
}

func TestTheReasonOfARejectionThatInterruptsGoesWithTheAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	c := inner(f.Start())
	lines := make(chan string, 1)
	echo, err := jsonrpc.Start(child.Command{Args: []string{"/bin/cat"}}, "2.0", func(_ *jsonrpc.Peer, line []byte) { lines <- string(line) })
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	c.mu.Lock()
	c.stopped = append(c.stopped, &question{peer: echo, requestID: json.RawMessage("7"), why: "not today"})
	c.mu.Unlock()
	c.withdrawAll()
	const want = `{"jsonrpc":"2.0","id":7,"result":{"_meta":{"message":"not today"},"outcome":{"outcome":"cancelled"}}}`
	if got := <-lines; got != want {
		t.Errorf("the answer is %s", got)
	}
	if resolved := agenttest.Payloads[runnerscripts.PermissionResolved](t, f.Out.All(), runnerscripts.TypePermissionResolved); len(resolved) > 0 {
		t.Errorf("it was told again: %+v", resolved)
	}
}
