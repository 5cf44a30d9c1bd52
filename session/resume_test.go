package session

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// memory returns a turn that says the earlier prompts and appends to the file kept.
func memory() []runnerscripts.ScenarioStep {
	return steps(say("turn {{turn}}, before: {{history}}"), run("/bin/sh", "-c", "echo {{turn}} >> kept"))
}

func TestTheAgentRemembersInANewSandbox(t *testing.T) {
	t.Parallel()
	for name, renew := range map[string]func(t *testing.T, s *AgentSession, cfg Config) *AgentSession{
		"after the sandbox was terminated": func(t *testing.T, s *AgentSession, _ Config) *AgentSession {
			if err := s.TerminateEnvironment(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Files(t.Context(), environment.FilesOptions{}); !errors.Is(err, ErrNoEnvironment) {
				t.Errorf("files of a terminated sandbox: %v", err)
			}
			return s
		},
		"after the session was closed and opened": func(t *testing.T, s *AgentSession, cfg Config) *AgentSession {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			cfg.ID = s.ID()
			return start(t, cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := scripted(t, memory())
			cfg.Store = store.NewMemory()
			cfg.Environment.Workspace = []environment.Source{{Files: []environment.File{{Path: "kept", Content: "0\n"}}}}
			s := start(t, cfg)
			converse(t, s, "one")
			// Renew the sandbox twice: the second time, the stored state must include what
			// happened after the first restore.
			for _, p := range []string{"two", "three"} {
				s = renew(t, s, cfg)
				before, err := s.Transcript(t.Context())
				if err != nil || !strings.Contains(before.Main, "one") {
					t.Errorf("transcript without a sandbox: %q, %v", before.Main, err)
				}
				converse(t, s, p)
			}
			checkRemembered(t, s)
		})
	}
}

func checkRemembered(t *testing.T, s *AgentSession) {
	t.Helper()
	c, err := Reduce(s.store.Events(t.Context(), s.id, 1))
	if err != nil {
		t.Fatal(err)
	}
	if got := said(c); !strings.Contains(got, "turn 3, before: one\ntwo") {
		t.Errorf("the agent said %q", got)
	}
	if got, _ := written(t, s, "kept"); got != "0\n1\n2\n3\n" {
		t.Errorf("the workspace holds %q", got)
	}
	if st, _ := s.State(t.Context()); st.Environment.Starts != 3 {
		t.Errorf("%d sandboxes", st.Environment.Starts)
	}
	if n := count(logOf(t, s), runnerscripts.TypeTranscriptRestored); n != 2 {
		t.Errorf("%d transcript_restored events", n)
	}
}

func TestTheStoredTranscriptHoldsEveryQueryThatIsKnownToBeDone(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("x"))))
	for _, p := range []string{"first", "second"} {
		turn := prompt(t, s, p)
		for ev, err := range turn.Events(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Type != runnerscripts.TypeQueryCompleted {
				continue
			}
			stored, err := s.storedTranscript(t.Context())
			if err != nil || stored == nil || !strings.Contains(stored.Main, p) {
				t.Errorf("transcript stored when %q was done: %+v, %v", p, stored, err)
			}
		}
	}
	changed := payload[runnerscripts.TranscriptChanged](t, await(t, s, runnerscripts.TypeTranscriptChanged))
	if changed.Size == 0 || changed.Transcript.Main != "" {
		t.Errorf("transcript_changed %+v", changed)
	}
}

// The log orders the transcripts: if another program has continued the session, an older
// transcript does not replace a newer one.
func TestANewerTranscriptInTheStoreIsKept(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("x")))
	cfg.Store = store.NewMemory()
	s := start(t, cfg)
	converse(t, s, "a")
	await(t, s, runnerscripts.TypeSessionIdle)
	newer, err := store.PutBlob(t.Context(), s.store, s.ID(), strings.NewReader(`{"main":"newer"}`))
	if err != nil {
		t.Fatal(err)
	}
	other := event(runnerscripts.TypeCheckpoint, "", runnerscripts.Checkpoint{Number: s.head().Number + 1, Transcript: string(newer)})
	other.Seq, other.SessionID = s.lastSeq()+1, s.ID()
	if err := s.store.Append(t.Context(), s.ID(), other); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prompt(t.Context(), "b"); !errors.Is(err, store.ErrConflict) {
		t.Errorf("prompt: %v", err)
	}
	if err := s.Close(); !errors.Is(err, store.ErrConflict) {
		t.Errorf("close: %v", err)
	}
	cfg.ID = s.ID()
	stored, err := start(t, cfg).storedTranscript(t.Context())
	if err != nil || stored == nil || stored.Main != "newer" {
		t.Errorf("stored %+v, %v", stored, err)
	}
}

func TestTerminatingStopsTheQueryAndLetsQueuedOnesGoOnInANewSandbox(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(forever()), steps(say("on"))))
	running := prompt(t, s, "a")
	await(t, s, runnerscripts.TypeQueryStarted)
	queued := prompt(t, s, "b")
	if err := s.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done := complete(t, running); done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("stop reason %q", done.StopReason)
	}
	complete(t, queued)
	inOrder(t, logOf(t, s), runnerscripts.TypeEnvironmentReady, runnerscripts.TypeQueryCompleted,
		runnerscripts.TypeEnvironmentTerminated, runnerscripts.TypeEnvironmentReady, runnerscripts.TypeQueryCompleted)
}

func TestAWorkspaceThatIsTooLargeIsReportedAndNotStored(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(write("big", strings.Repeat("x", 100_000))))
	cfg.Environment.Checkpoints.MaxSize = 50_000
	s := start(t, cfg)
	converse(t, s, "a")
	if err := s.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	info := payload[runnerscripts.ErrorInfo](t, await(t, s, runnerscripts.TypeError))
	if !strings.Contains(info.Message, `checkpoint 2 has no files`) || !strings.Contains(info.Message, `the most of it in "big"`) {
		t.Errorf("error event %+v", info)
	}
	if n := count(logOf(t, s), runnerscripts.TypeError); n != 1 {
		t.Errorf("%d errors, want one: nothing has changed since", n)
	}
	if c := s.head(); c.Reason != runnerscripts.CheckpointQuery || c.Parent != 1 || c.Stale == "" || c.FilesOf != 1 || c.Files != 0 || c.Transcript == "" {
		t.Errorf("checkpoint %+v", c)
	}
	for what, err := range map[string]error{"rewind": s.Rewind(t.Context(), 2), "diff": func() error { _, err := s.Changes(t.Context(), 1, 2); return err }()} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "use checkpoint 1") {
			t.Errorf("%s of a checkpoint without files: %v", what, err)
		}
	}
	if _, err := s.ForkFrom(t.Context(), 2, 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("fork of a checkpoint without files: %v", err)
	}
	converse(t, s, "b")
	if got, ok := written(t, s, "big"); ok && len(got) != 100_000 {
		t.Errorf("the next sandbox has %d bytes", len(got))
	}
}

func TestAFolderOfTheUserIsNeitherStoredNorFilledAgain(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	cfg := scripted(t, steps(write("f", "by the agent")), steps(say("x")))
	cfg.Environment.Sandbox.Workspace = folder
	cfg.Environment.Workspace = []environment.Source{{Files: []environment.File{{Path: "f", Content: "source"}}}}
	s := start(t, cfg)
	converse(t, s, "a")
	if err := s.TerminateEnvironment(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "g"), []byte("by the user"), 0o600); err != nil {
		t.Fatal(err)
	}
	converse(t, s, "b")
	for name, want := range map[string]string{"f": "by the agent", "g": "by the user"} {
		if got, _ := written(t, s, name); got != want {
			t.Errorf("%s holds %q", name, got)
		}
	}
	if c := s.head(); c.Workspace != "" || c.Transcript == "" {
		t.Errorf("checkpoint %+v", c)
	}
	if err := s.Rewind(t.Context(), 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("rewind: %v", err)
	}
}

func TestOptionsHoldInLaterSandboxes(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("{{model}}")))
	cfg.Store = store.NewMemory()
	s := start(t, cfg)
	for _, o := range []Options{{Model: "m1"}, {Model: "m2", Mode: "acceptEdits"}} {
		if err := s.SetOptions(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if got := converse(t, s, "a"); got != o.Model {
			t.Errorf("model %q, want %q", got, o.Model)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.ID = s.ID()
	s = start(t, cfg)
	if got := converse(t, s, "a"); got != "m2" {
		t.Errorf("model %q in the new sandbox", got)
	}
	st, _ := s.State(t.Context())
	if st.Options != (Options{Model: "m2", Mode: "acceptEdits"}) || st.Mode != "acceptEdits" {
		t.Errorf("state %+v", st)
	}
}

func TestAModeThatTheAgentRefusesIsNotInForce(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("x"))))
	converse(t, s, "a")
	before, _ := s.State(t.Context())
	if err := s.SetOptions(t.Context(), Options{Mode: "nonsense"}); err != nil {
		t.Fatal(err)
	}
	converse(t, s, "b")
	st, _ := s.State(t.Context())
	if st.Mode != before.Mode || st.Options.Mode != "nonsense" {
		t.Errorf("state %+v", st)
	}
	told := slices.ContainsFunc(logOf(t, s), func(ev runnerscripts.Event) bool {
		return ev.Type == runnerscripts.TypeError && strings.Contains(payload[runnerscripts.ErrorInfo](t, ev).Message, "nonsense")
	})
	if !told {
		t.Error("no event tells of the refusal")
	}
}

func TestOpeningEndsWhatADeadProgramLeftOpen(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("x")))
	cfg.Store = store.NewMemory()
	ctx := t.Context()
	if err := cfg.Store.Create(ctx, store.Record{ID: "s1", Agent: "script"}); err != nil {
		t.Fatal(err)
	}
	left := []runnerscripts.Event{
		event(runnerscripts.TypeQueryQueued, "q1", runnerscripts.QueryStarted{Prompt: "a"}),
		event(runnerscripts.TypeEnvironmentReady, "", runnerscripts.EnvironmentInfo{ID: "dead"}),
		event(runnerscripts.TypeQueryStarted, "q1", runnerscripts.QueryStarted{Prompt: "a"}),
		event(runnerscripts.TypeQueryQueued, "q2", runnerscripts.QueryStarted{Prompt: "b"}),
		event(runnerscripts.TypePermissionRequest, "q1", runnerscripts.PermissionRequest{ID: "p1"}),
	}
	for i := range left {
		left[i].Seq, left[i].SessionID = uint64(i+1), "s1"
	}
	if err := cfg.Store.Append(ctx, "s1", left...); err != nil {
		t.Fatal(err)
	}
	cfg.ID = "s1"
	s := start(t, cfg)
	st, _ := s.State(ctx)
	if st.Query != nil || len(st.Queued)+len(st.Pending) > 0 || st.Environment.Status != EnvironmentTerminated {
		t.Errorf("state %+v", st)
	}
	events := logOf(t, s)[len(left):]
	if count(events, runnerscripts.TypeQueryFailed) != 2 || count(events, runnerscripts.TypePermissionResolved) != 1 {
		t.Errorf("events %v", typesOf(events))
	}
	if got := converse(t, s, "c"); got != "x" {
		t.Errorf("the agent said %q", got)
	}
}

func TestASessionEndsWhenAnotherProgramContinuesIt(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("x")))
	cfg.Store = store.NewMemory()
	old := start(t, cfg)
	converse(t, old, "a")
	await(t, old, runnerscripts.TypeSessionIdle)
	another := event(runnerscripts.TypeLog, "", runnerscripts.Log{})
	another.Seq, another.SessionID = old.lastSeq()+1, old.ID()
	if err := cfg.Store.Append(t.Context(), old.ID(), another); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Prompt(t.Context(), "b"); !errors.Is(err, store.ErrConflict) {
		t.Errorf("prompt to a session that was taken over: %v", err)
	}
	if err := old.Close(); !errors.Is(err, store.ErrConflict) {
		t.Errorf("close: %v", err)
	}
}

func TestASandboxThatDiesIsReplaced(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, memory())
	var last *environment.Environment
	cfg.Create = func(ctx context.Context, cfg environment.Config) (_ *environment.Environment, err error) {
		last, err = environment.Create(ctx, cfg)
		return last, err
	}
	s := start(t, cfg)
	converse(t, s, "one")
	if _, err := last.Primitive().Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The session has not noticed the end of the sandbox yet. The agent has not seen the prompt,
	// so the prompt runs in a new sandbox.
	if got := converse(t, s, "two"); !strings.Contains(got, "before: one") {
		t.Errorf("in the new sandbox the agent said %q", got)
	}
	ended := payload[runnerscripts.EnvironmentTerminated](t, await(t, s, runnerscripts.TypeEnvironmentTerminated))
	if ended.Reason != reasonUnhealthy {
		t.Errorf("reason %q", ended.Reason)
	}
	if got, _ := written(t, s, "kept"); got != "1\n2\n" {
		t.Errorf("the workspace holds %q", got)
	}
	if n := count(logOf(t, s), runnerscripts.TypeLog); n != 0 {
		t.Errorf("%d log events, though nothing was lost", n)
	}
}

func TestASandboxThatDiesWhileTheAgentWorksFailsTheQuery(t *testing.T) {
	t.Parallel()
	cfg := scripted(t)
	// A new sandbox does not know the earlier query, so the prompt selects the turn.
	cfg.Environment.Agent.Config = json.RawMessage(`{"turns":[
		{"when":"one","steps":[{"delay_ms":3600000}]}, {"steps":[{"text":"alive"}]}]}`)
	var last *environment.Environment
	cfg.Create = func(ctx context.Context, cfg environment.Config) (_ *environment.Environment, err error) {
		last, err = environment.Create(ctx, cfg)
		return last, err
	}
	s := start(t, cfg)
	turn := prompt(t, s, "one")
	await(t, s, runnerscripts.TypeUserMessage)
	if _, err := last.Primitive().Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := turn.Wait(t.Context())
	var failed *QueryError
	if !errors.As(err, &failed) || !errors.Is(err, primitives.ErrTerminated) && !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("query in a sandbox that died: %v", err)
	}
	converse(t, s, "two")
	inOrder(t, logOf(t, s), runnerscripts.TypeQueryFailed, runnerscripts.TypeEnvironmentTerminated,
		runnerscripts.TypeEnvironmentReady, runnerscripts.TypeQueryCompleted)
}
