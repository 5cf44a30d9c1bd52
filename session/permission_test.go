package session

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

var (
	allowed  = runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}
	rejected = runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "not today"}
)

// written returns the content of a file of the workspace, and whether it exists.
func written(t *testing.T, s *AgentSession, name string) (string, bool) {
	t.Helper()
	r, err := s.OpenFile(t.Context(), name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), true
}

// resolutions returns how the permission requests of a session ended.
func resolutions(t *testing.T, s *AgentSession) []runnerscripts.PermissionResolved {
	t.Helper()
	var all []runnerscripts.PermissionResolved
	for _, ev := range logOf(t, s) {
		if ev.Type == runnerscripts.TypePermissionResolved {
			all = append(all, payload[runnerscripts.PermissionResolved](t, ev))
		}
	}
	return all
}

func TestTheCallbackDecides(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		decision runnerscripts.PermissionDecision
		want     string
		exists   bool
	}{
		"allowed":   {decision: allowed, want: "yes", exists: true},
		"rejected":  {decision: rejected},
		"by option": {decision: runnerscripts.PermissionDecision{OptionID: "allow_once"}, want: "yes", exists: true},
		"rewritten": {
			decision: runnerscripts.PermissionDecision{
				Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"path":"f","content":"changed"}`),
			},
			want: "changed", exists: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := scripted(t, steps(ask(write("f", "yes"))))
			cfg.Environment.OnPermission = func(_ context.Context, req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
				if req.ToolCall.ToolCallID == "" || len(req.Options) == 0 {
					t.Errorf("request %+v", req)
				}
				return c.decision
			}
			s := start(t, cfg)
			complete(t, prompt(t, s, "a"))
			if got, ok := written(t, s, "f"); got != c.want || ok != c.exists {
				t.Errorf("file %q, exists %v", got, ok)
			}
			if res := resolutions(t, s); len(res) != 1 || res[0].Reason != runnerscripts.ReasonAnswered || res[0].Kind == "" {
				t.Errorf("resolved: %+v", res)
			}
		})
	}
}

func TestTheFirstAnswerWins(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(ask(write("f", "yes")))))
	turn := prompt(t, s, "a")
	req := payload[runnerscripts.PermissionRequest](t, await(t, s, runnerscripts.TypePermissionRequest))
	if st, _ := s.State(t.Context()); len(st.Pending) != 1 || st.Pending[0].ID != req.ID {
		t.Errorf("pending: %+v", st.Pending)
	}
	var won atomic.Int32
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			switch err := s.Respond(t.Context(), req.ID, allowed); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, ErrNotPending):
				t.Errorf("late answer: %v", err)
			}
		})
	}
	wg.Wait()
	complete(t, turn)
	if won.Load() != 1 {
		t.Errorf("%d answers won", won.Load())
	}
	if res := resolutions(t, s); len(res) != 1 {
		t.Errorf("resolved: %+v", res)
	}
	if st, _ := s.State(t.Context()); len(st.Pending) != 0 {
		t.Errorf("still pending: %+v", st.Pending)
	}
}

func TestAnInvalidAnswerLeavesTheRequestPending(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(ask(write("f", "yes")))))
	turn := prompt(t, s, "a")
	req := payload[runnerscripts.PermissionRequest](t, await(t, s, runnerscripts.TypePermissionRequest))
	for name, d := range map[string]runnerscripts.PermissionDecision{
		"nothing":                 {},
		"unknown option":          {OptionID: "perhaps"},
		"unknown kind":            {Kind: "perhaps"},
		"contradiction":           {OptionID: "allow_once", Kind: runnerscripts.RejectOnce},
		"rejection with an input": {Kind: runnerscripts.RejectOnce, UpdatedInput: json.RawMessage(`{}`)},
	} {
		// Clients of an HTTP server get the message, too, so it uses the JSON names.
		if err := s.Respond(t.Context(), req.ID, d); !errors.Is(err, fs.ErrInvalid) || strings.Contains(err.Error(), "OptionID") || strings.Contains(err.Error(), "UpdatedInput") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Respond(t.Context(), req.ID, allowed); err != nil {
		t.Fatal(err)
	}
	complete(t, turn)
	if _, ok := written(t, s, "f"); !ok {
		t.Error("the allowed file was not written")
	}
}

func TestAnUnansweredRequestIsRejected(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(ask(write("f", "yes"))))
	cfg.Environment.PermissionTimeout = 20 * time.Millisecond
	cfg.Environment.OnPermission = func(ctx context.Context, _ runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
		<-ctx.Done() // the timeout cancels the callback's context
		return allowed
	}
	s := start(t, cfg)
	complete(t, prompt(t, s, "a"))
	res := resolutions(t, s)
	if len(res) != 1 || res[0].Reason != runnerscripts.ReasonTimeout || res[0].Kind != runnerscripts.RejectOnce {
		t.Errorf("resolved: %+v", res)
	}
	if _, ok := written(t, s, "f"); ok {
		t.Error("the file was written without permission")
	}
}

func TestTheCallbackMayLeaveTheAnswerToRespond(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(ask(write("f", "yes"))))
	cfg.Environment.OnPermission = func(context.Context, runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
		return runnerscripts.PermissionDecision{}
	}
	s := start(t, cfg)
	turn := prompt(t, s, "a")
	req := payload[runnerscripts.PermissionRequest](t, await(t, s, runnerscripts.TypePermissionRequest))
	if err := s.Respond(t.Context(), req.ID, rejected); err != nil {
		t.Fatal(err)
	}
	complete(t, turn)
	c, err := Reduce(turn.Events(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(c.Blocks)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "not today") {
		t.Errorf("the agent did not hear why it was rejected: %s", data)
	}
}

func TestWithoutOnPermissionARequestIsRejectedAndALogEventSaysSo(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(ask(write("f", "yes"))))
	cfg.Environment.OnPermission = nil
	s := start(t, cfg)
	complete(t, prompt(t, s, "a"))
	if res := resolutions(t, s); len(res) != 1 || res[0].Reason != runnerscripts.ReasonAnswered || res[0].Kind != runnerscripts.RejectOnce {
		t.Errorf("resolved: %+v", res)
	}
	var said string
	for _, ev := range logOf(t, s) {
		if ev.Type == runnerscripts.TypeLog {
			said += payload[runnerscripts.Log](t, ev).Message
		}
	}
	if !strings.Contains(said, "environment.AllowAll") {
		t.Errorf("the log events say %q, want how to allow", said)
	}
	if _, ok := written(t, s, "f"); ok {
		t.Error("the file was written without permission")
	}
}

func TestADecisionOfTheCallbackThatIsNotOfferedIsARejection(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(ask(write("f", "yes"))))
	cfg.Environment.PermissionTimeout = -1
	cfg.Environment.OnPermission = func(context.Context, environment.PermissionRequest) environment.PermissionDecision {
		return environment.PermissionDecision{OptionID: "perhaps"}
	}
	s := start(t, cfg)
	complete(t, prompt(t, s, "a"))
	if res := resolutions(t, s); len(res) != 1 || res[0].Kind != runnerscripts.RejectOnce {
		t.Errorf("resolved: %+v", res)
	}
}

func TestAnInterruptWithdrawsTheRequest(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(ask(write("f", "yes"))))
	entered := make(chan struct{})
	cfg.Environment.OnPermission = func(ctx context.Context, _ runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
		close(entered)
		<-ctx.Done()
		return allowed
	}
	s := start(t, cfg)
	turn := prompt(t, s, "a")
	<-entered
	req := payload[runnerscripts.PermissionRequest](t, await(t, s, runnerscripts.TypePermissionRequest))
	if err := s.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := complete(t, turn); done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("stop reason %q", done.StopReason)
	}
	if res := resolutions(t, s); len(res) != 1 || res[0].Reason != runnerscripts.ReasonCancelled || res[0].Kind != "" {
		t.Errorf("resolved: %+v", res)
	}
	if err := s.Respond(t.Context(), req.ID, allowed); !errors.Is(err, ErrNotPending) {
		t.Errorf("answer to a withdrawn request: %v", err)
	}
	if _, ok := written(t, s, "f"); ok {
		t.Error("the file was written without permission")
	}
}
