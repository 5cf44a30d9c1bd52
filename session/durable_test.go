package session

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// lasting returns the configuration of a durable session in a local sandbox. The sandbox ends
// with the test.
func lasting(t *testing.T, turns ...[]runnerscripts.ScenarioStep) Config {
	t.Helper()
	cfg := scripted(t, turns...)
	cfg.Environment.Sandbox.Keep = true
	cfg.Store = store.NewMemory()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		left, err := environment.List(ctx, cfg.Environment.Sandbox)
		for _, info := range left {
			err = errors.Join(err, environment.Remove(ctx, cfg.Environment.Sandbox, info.ID))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return cfg
}

// sandboxes returns the number of sandboxes.
func sandboxes(t *testing.T, cfg Config) int {
	t.Helper()
	list, err := environment.List(t.Context(), cfg.Environment.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// reopen closes a session and opens it again.
func reopen(t *testing.T, s *AgentSession, cfg Config) *AgentSession {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.ID = s.ID()
	return start(t, cfg)
}

// once fails unless the log has each event of each query once, in order.
func once(t *testing.T, events []runnerscripts.Event) {
	t.Helper()
	index := make(map[string]int)
	asked := make(map[string]int)
	query := ""
	for _, ev := range events {
		if ev.Index != 0 {
			if ev.Index != index[ev.QueryID]+1 {
				t.Errorf("event %d, %s, has index %d after %d", ev.Seq, ev.Type, ev.Index, index[ev.QueryID])
			}
			index[ev.QueryID] = ev.Index
		}
		switch ev.Type {
		case runnerscripts.TypeQueryStarted:
			query = ev.QueryID
		case runnerscripts.TypePermissionRequest:
			asked[ev.QueryID+" "+payload[runnerscripts.PermissionRequest](t, ev).ID]++
		case runnerscripts.TypePermissionResolved:
			asked[query+" "+payload[runnerscripts.PermissionResolved](t, ev).ID] += 100
		}
	}
	for id, n := range asked {
		if n != 101 {
			t.Errorf("request %s was asked %d times and resolved %d times", id, n%100, n/100)
		}
	}
}

const until = "until [ -e go-on ]; do sleep 0.02; done"

func TestADurableSessionGoesOnAfterClose(t *testing.T) {
	t.Parallel()
	cfg := lasting(t, steps(say("before"), run("sh", "-c", "echo ran >>ran; "+until), say("after")), steps(say("second after {{history}} with {{attachments}}")), steps(say(`"third"`)))
	s := start(t, cfg)
	turn := prompt(t, s, "first")
	if _, err := s.PromptQuery(t.Context(), environment.Query{
		Prompt: "second", Attachments: []runnerscripts.Attachment{{Name: "a.txt", Data: []byte("a")}}, OutputSchema: json.RawMessage(`{"type":"string"}`),
	}); err != nil {
		t.Fatal(err)
	}
	awaitFrom(t, s, 1, runnerscripts.TypeToolCall)
	s = reopen(t, s, cfg)
	if _, err := turn.Wait(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("a turn that goes on: %v, want ErrClosed", err)
	}
	turns := s.Turns()
	if len(turns) != 2 || turns[0].ID() != turn.ID() {
		t.Fatalf("the turns are %v", turns)
	}
	if st, err := s.State(t.Context()); err != nil || len(st.Queued) != 1 || len(st.Queued[0].Attachments) != 1 || st.Queued[0].Attachments[0].Size != 1 {
		t.Errorf("queued: %+v, %v", st.Queued, err)
	}
	touch(t, s, "go-on")
	for i, turn := range turns {
		if done := complete(t, turn); string(done.ResultData) != []string{"", `"third"`}[i] {
			t.Errorf("turn %d has the output %s", i, done.ResultData)
		}
		c, err := Reduce(turn.Events(t.Context()))
		if want := []string{
			"before|after",
			"second after first with a.txt text/plain ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb|\"third\"",
		}[i]; err != nil || said(c) != want {
			t.Errorf("turn %d said %q, %v", i, said(c), err)
		}
	}
	if got, _ := written(t, s, "ran"); got != "ran\n" {
		t.Errorf("the prompt ran: %q", got)
	}
	once(t, logOf(t, s))
	if st, _ := s.State(t.Context()); st.Environment.Starts != 1 || st.Environment.Status != EnvironmentReady {
		t.Errorf("the sandbox: %+v", st.Environment)
	}
	if err := s.Destroy(t.Context()); err != nil || sandboxes(t, cfg) != 0 {
		t.Errorf("destroyed: %v, and %d sandboxes are left", err, sandboxes(t, cfg))
	}
}

// touch creates an empty file in the sandbox.
func touch(t *testing.T, s *AgentSession, name string) {
	t.Helper()
	files := s.live().sandbox.(environmentSandbox).Files()
	if err := files.WriteFile(t.Context(), name, strings.NewReader(""), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestARequestThatWaitsIsAnsweredAfterTheSessionWasReopened(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(t *testing.T, cfg *Config) func(s *AgentSession, id string) error{
		"by Respond": func(*testing.T, *Config) func(s *AgentSession, id string) error {
			return func(s *AgentSession, id string) error {
				return s.Respond(context.Background(), id, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
			}
		},
		"by OnPermission": func(_ *testing.T, cfg *Config) func(s *AgentSession, id string) error {
			cfg.Environment.OnPermission = environment.AllowAll
			return func(*AgentSession, string) error { return nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := lasting(t, steps(ask(write("f", "1")), say("done")))
			s := start(t, cfg)
			prompt(t, s, "go")
			id := payload[runnerscripts.PermissionRequest](t, await(t, s, runnerscripts.TypePermissionRequest)).ID
			respond := answer(t, &cfg)
			s = reopen(t, s, cfg)
			if st, _ := s.State(t.Context()); len(st.Pending) != 1 && name == "by Respond" {
				t.Errorf("pending: %+v", st.Pending)
			}
			if err := respond(s, id); err != nil {
				t.Errorf("the answer: %v", err)
			}
			for _, turn := range s.Turns() {
				complete(t, turn)
			}
			if got, _ := written(t, s, "f"); got != "1" {
				t.Errorf("the file holds %q", got)
			}
			if err := s.Respond(t.Context(), id, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); !errors.Is(err, ErrNotPending) {
				t.Errorf("a second answer: %v", err)
			}
			once(t, logOf(t, s))
		})
	}
}

func TestADurableSessionWithoutItsSandbox(t *testing.T) {
	t.Parallel()
	cfg := lasting(t, steps(say("before"), ask(run("true")))) // the new sandbox plays it, too
	s := start(t, cfg)
	first := prompt(t, s, "first")
	prompt(t, s, "second")
	await(t, s, runnerscripts.TypePermissionRequest)
	box := s.live().ID()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := environment.Remove(t.Context(), cfg.Environment.Sandbox, box); err != nil {
		t.Fatal(err)
	}
	cfg.ID = s.ID()
	s = start(t, cfg)
	turns := s.Turns()
	if len(turns) != 1 || turns[0].ID() == first.ID() {
		t.Fatalf("%d turns", len(turns))
	}
	for ev, err := range turns[0].Events(t.Context()) {
		if err == nil && ev.Type == runnerscripts.TypePermissionRequest && ev.QueryID == turns[0].ID() {
			req := payload[runnerscripts.PermissionRequest](t, ev)
			err = s.Respond(t.Context(), req.ID, req.Allow())
		}
		if err != nil {
			t.Error(err)
		}
	}
	complete(t, turns[0])
	events := logOf(t, s)
	once(t, events)
	inOrder(t, events, runnerscripts.TypePermissionResolved, runnerscripts.TypeQueryFailed, runnerscripts.TypeEnvironmentTerminated,
		runnerscripts.TypeEnvironmentReady, runnerscripts.TypeQueryCompleted)
}

func TestADurableQueryIsInterrupted(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		cfg := lasting(t, steps(say("x"), forever()))
		s := start(t, cfg)
		turn := prompt(t, s, "go")
		await(t, s, runnerscripts.TypeAgentMessage)
		if again {
			s = reopen(t, s, cfg)
			turn = s.Turns()[0]
		}
		if err := turn.Interrupt(t.Context()); err != nil {
			t.Fatal(err)
		}
		if done := complete(t, turn); done.StopReason != runnerscripts.StopCancelled {
			t.Errorf("it ended as %+v", done)
		}
		if err := s.TerminateEnvironment(t.Context()); err != nil || sandboxes(t, cfg) != 0 {
			t.Errorf("terminated: %v, and %d sandboxes are left", err, sandboxes(t, cfg))
		}
		once(t, logOf(t, s))
	}
}

func TestASandboxThatWasBeingMadeWhenTheProgramDiedIsRemoved(t *testing.T) {
	t.Parallel()
	cfg := lasting(t, steps(say("x")))
	s := start(t, cfg)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	creating := event(runnerscripts.TypeEnvironmentCreating, "", runnerscripts.EnvironmentInfo{}) // it has the time, so it comes first
	made := cfg.Environment
	made.SessionID = s.ID()
	env, err := environment.Create(t.Context(), made)
	if err != nil {
		t.Fatal(err)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	creating.Seq, creating.SessionID = s.lastSeq()+1, s.ID()
	if err := cfg.Store.Append(t.Context(), s.ID(), creating); err != nil {
		t.Fatal(err)
	}
	cfg.ID = s.ID()
	s = start(t, cfg)
	if _, err := environment.Attach(t.Context(), cfg.Environment, env.ID()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the sandbox: %v, want fs.ErrNotExist", err)
	}
	converse(t, s, "go")
}
