package environment

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// asksForF returns an agent that asks for permission before it writes the file f.
func asksForF(t *testing.T) Agent {
	t.Helper()
	return scenario(t, turn(runnerscripts.ScenarioStep{Ask: &runnerscripts.ScenarioStep{Write: write("f", "1")}}))
}

func TestWithoutOnPermissionARequestIsRejectedAndALogEventSaysHowToAllow(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		env := create(t, Config{Sandbox: box, Agent: asksForF(t), PermissionTimeout: -1})
		events, err := collect(t.Context(), env, Query{Prompt: "x"})
		if err != nil {
			t.Fatal(err)
		}
		said := logMessages(events)
		if !strings.Contains(said, "OnPermission") || !strings.Contains(said, "AllowAll") {
			t.Errorf("the log events say %q, want how to allow in %q", said, types(events))
		}
		workspaceOf(t, env).mustBe(t, tree{})
	})
}

func TestOnPermissionDecides(t *testing.T) {
	asked := func(kind runnerscripts.ToolKind) func(context.Context, PermissionRequest) PermissionDecision {
		return func(_ context.Context, req PermissionRequest) PermissionDecision {
			if req.ToolCall.Kind == kind {
				return req.Allow()
			}
			return req.Reject("not of this kind")
		}
	}
	for name, c := range map[string]struct {
		on   func(context.Context, PermissionRequest) PermissionDecision
		want tree
	}{
		"all are allowed":           {AllowAll, tree{"f": "1"}},
		"all are rejected":          {RejectAll, tree{}},
		"by the kind, allowed":      {asked(runnerscripts.ToolEdit), tree{"f": "1"}},
		"by the kind, rejected":     {asked(runnerscripts.ToolRead), tree{}},
		"what is not offered":       {func(context.Context, PermissionRequest) PermissionDecision { return PermissionDecision{OptionID: "x"} }, tree{}},
		"what is no kind of answer": {func(context.Context, PermissionRequest) PermissionDecision { return PermissionDecision{Kind: "x"} }, tree{}},
		"an input that does not fit": {func(_ context.Context, req PermissionRequest) PermissionDecision {
			d := req.Allow()
			d.UpdatedInput = []byte(`[]`)
			return d
		}, tree{}},
		"when its time has run out":  {func(ctx context.Context, req PermissionRequest) PermissionDecision { <-ctx.Done(); return req.Allow() }, tree{}},
		"never, and nobody responds": {AnswerLater, tree{}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Agent: asksForF(t), OnPermission: c.on, PermissionTimeout: -1}
			if strings.HasPrefix(name, "when") || strings.HasPrefix(name, "never") {
				cfg.PermissionTimeout = 20 * time.Millisecond
			}
			env := create(t, cfg)
			events, err := collect(t.Context(), env, Query{Prompt: "x"})
			// If the agent cannot use an answer, an error event comes first.
			if err != nil || !strings.Contains(strings.NewReplacer("error ", "", "log ", "").Replace(types(events)), "request_permission permission_resolved") {
				t.Fatalf("events %q, %v", types(events), err)
			}
			workspaceOf(t, env).mustBe(t, c.want)
			warned := strings.Contains(logMessages(events), "OnPermission")
			if wants := strings.HasPrefix(name, "what"); warned != wants {
				t.Errorf("a log event names OnPermission: %v, want %v: %s", warned, wants, logMessages(events))
			}
		})
	}
}

// logMessages returns the payloads of the log events.
func logMessages(events []runnerscripts.Event) (said string) {
	for _, ev := range events {
		if ev.Type == runnerscripts.TypeLog {
			said += string(ev.Payload)
		}
	}
	return said
}

func TestAnAnswerByHandThatMakesNoSenseLeavesTheRequestWaiting(t *testing.T) {
	env := create(t, Config{Agent: asksForF(t), OnPermission: AnswerLater, PermissionTimeout: -1})
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
		if err != nil {
			t.Fatal(err)
		}
		id := question(t, ev)
		if id == "" {
			continue
		}
		for _, d := range []PermissionDecision{{}, {OptionID: "x"}, {Kind: "x"}, {Kind: runnerscripts.RejectOnce, UpdatedInput: []byte(`{}`)}} {
			if err := env.Respond(t.Context(), id, d); !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("%+v: %v, want fs.ErrInvalid", d, err)
			}
		}
		if err := env.Respond(t.Context(), id, allow); err != nil {
			t.Error(err)
		}
	}
	workspaceOf(t, env).mustBe(t, tree{"f": "1"})
}

func TestAnInterruptEndsTheWaitOfOnPermission(t *testing.T) {
	var env *Environment
	withdrawn := false
	env = create(t, Config{Agent: asksForF(t), PermissionTimeout: -1, OnPermission: func(ctx context.Context, _ PermissionRequest) PermissionDecision {
		if err := env.Interrupt(ctx); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		withdrawn = true
		return allow
	}})
	if _, err := collect(t.Context(), env, Query{Prompt: "x"}); err != nil {
		t.Fatal(err)
	}
	if !withdrawn { // it must have returned, because the query waits for it
		t.Error("OnPermission was not called, or has not returned")
	}
	workspaceOf(t, env).mustBe(t, tree{})
}

// If the runner does not take an answer, the answer ends with its query.
func TestOnPermissionDoesNotHoldUpAQueryWhoseRunnerTakesNoInput(t *testing.T) {
	answered := filepath.Join(t.TempDir(), "answered")
	if err := syscall.Mkfifo(answered, 0o600); err != nil {
		t.Fatal(err)
	}
	env := create(t, Config{
		Scripts: Scripts{SetupSession: fine(), ExecuteQuery: shell(`read -r request; ` + started +
			`echo '{"type":"request_permission","payload":{"id":"p"}}'; read -r x <` + answered + `; ` + completed + `sleep 1000`)},
		PermissionTimeout: -1,
		OnPermission: func(_ context.Context, req PermissionRequest) PermissionDecision {
			if err := os.WriteFile(answered, []byte("\n"), 0o600); err != nil {
				t.Error(err)
			}
			return req.Reject("no")
		},
	})
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type != runnerscripts.TypePermissionRequest {
			continue
		}
		// The first line is larger than the pipe, and the others fill the queue behind it.
		for range script.QueuedControls + 1 {
			if err := env.queries.Agent().Send(t.Context(), strings.Repeat("x", 1<<20)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestAFollowerWithoutOnPermissionLeavesRequestsToTheProgramThatAskedTheQuery(t *testing.T) {
	box := sandbox(t)
	followed := make(chan struct{})
	env := create(t, Config{Sandbox: toKeep(box), Agent: asksForF(t), OnPermission: func(ctx context.Context, req PermissionRequest) PermissionDecision {
		select {
		case <-followed:
		case <-ctx.Done(): // the follower has failed
		}
		return req.Allow()
	}})
	removeLater(t, env)
	running := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		begin := sync.OnceFunc(func() { close(begun) })
		defer begin()
		var err error
		for ev, e := range env.ExecuteQuery(t.Context(), Query{Prompt: "x"}) {
			if err = e; ev.Type == runnerscripts.TypePermissionRequest {
				begin()
			}
		}
		running <- err
	}()
	<-begun
	follower := attach(t, env.ID(), box)
	var once sync.Once
	for ev, err := range follower.FollowQuery(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if question(t, ev) == "" {
			continue
		}
		once.Do(func() {
			go func() { // a call at its own gateway, which the other program does not see
				if refusal := follower.queries.Hold(t.Context(), "Write", json.RawMessage("{}")); refusal == "" {
					t.Error("a held call that nobody answers passes")
				}
				close(followed)
			}()
		})
	}
	if err := <-running; err != nil {
		t.Error(err)
	}
	workspaceOf(t, env).mustBe(t, tree{"f": "1"})
}
