package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestAPromptRunsInASandboxThatIsMadeForIt(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("you said {{prompt}}"))))
	if st, _ := s.State(t.Context()); st.Environment.Status != EnvironmentNone {
		t.Errorf("before the first prompt the environment is %q", st.Environment.Status)
	}
	turn := prompt(t, s, "hello")
	var events []runnerscripts.Event
	for ev, err := range turn.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	}
	inOrder(t, events,
		runnerscripts.TypeQueryQueued, runnerscripts.TypeEnvironmentCreating, runnerscripts.TypeEnvironmentReady,
		runnerscripts.TypeQueryStarted, runnerscripts.TypeUserMessage, runnerscripts.TypeAgentMessage,
		runnerscripts.TypeTranscriptChanged, runnerscripts.TypeQueryCompleted)
	done := complete(t, turn)
	if done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("stop reason %q", done.StopReason)
	}
	awaitFrom(t, s, 1, runnerscripts.TypeSessionIdle)
	c := NewConversation()
	for _, ev := range logOf(t, s) {
		c.Apply(ev)
	}
	if got := said(c); got != "you said hello" {
		t.Errorf("the agent said %q", got)
	}
	st, err := s.State(t.Context())
	if err != nil || st.Query != nil || len(st.Queued) > 0 || st.Environment.Status != EnvironmentReady ||
		st.Usage != done.Usage || st.Agent != "script" || st.ID != s.ID() {
		t.Errorf("state %+v, %v", st, err)
	}
}

func TestPromptsRunOneAfterTheOtherInOneSandbox(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("{{turn}}:{{prompt}}"))))
	const n = 8
	turns := make([]*Turn, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var err error
			if turns[i], err = s.Prompt(t.Context(), "p"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, turn := range turns {
		complete(t, turn)
	}
	events := logOf(t, s)
	if got := count(events, runnerscripts.TypeEnvironmentCreating); got != 1 {
		t.Errorf("%d environments were made for one session", got)
	}
	var running string
	var queued, started []string
	for _, ev := range events {
		switch ev.Type {
		case runnerscripts.TypeQueryQueued:
			queued = append(queued, ev.QueryID)
		case runnerscripts.TypeQueryStarted:
			if running != "" {
				t.Errorf("%s started while %s was running", ev.QueryID, running)
			}
			running = ev.QueryID
			started = append(started, ev.QueryID)
		case runnerscripts.TypeQueryCompleted:
			running = ""
		}
	}
	if strings.Join(queued, " ") != strings.Join(started, " ") || len(started) != n {
		t.Errorf("accepted %v, started %v", queued, started)
	}
}

func TestRejectBusyRefusesASecondPrompt(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(forever()), steps(say("second")))
	cfg.RejectBusy = true
	s := start(t, cfg)
	first := prompt(t, s, "a")
	if _, err := s.Prompt(t.Context(), "b"); !errors.Is(err, ErrBusy) {
		t.Errorf("second prompt: %v", err)
	}
	await(t, s, runnerscripts.TypeQueryStarted)
	if err := s.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A reader that has seen the end of the query can prompt again.
	for ev, err := range first.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == runnerscripts.TypeQueryCompleted {
			if _, err := s.Prompt(t.Context(), "c"); err != nil {
				t.Errorf("prompt after the end: %v", err)
			}
		}
	}
}

func TestAFullQueueRefusesPrompts(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(forever()))
	cfg.MaxQueue = 2
	s := start(t, cfg)
	prompt(t, s, "runs")
	await(t, s, runnerscripts.TypeQueryStarted)
	prompt(t, s, "waits")
	prompt(t, s, "waits")
	if _, err := s.Prompt(t.Context(), "too many"); !errors.Is(err, ErrBusy) {
		t.Errorf("prompt to a full queue: %v", err)
	}
}

func TestAFailedCreationLeavesACleanState(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("at last")))
	boom := errors.New("no room")
	fail := true
	cfg.Create = func(ctx context.Context, cfg environment.Config) (*environment.Environment, error) {
		if fail {
			fail = false
			return nil, boom
		}
		return environment.Create(ctx, cfg)
	}
	s := start(t, cfg)
	_, err := prompt(t, s, "a").Wait(t.Context())
	var failed *QueryError
	if !errors.Is(err, boom) || !errors.As(err, &failed) || failed.Failure.Message == "" {
		t.Errorf("query in an environment that cannot be made: %v", err)
	}
	if st, _ := s.State(t.Context()); st.Environment.Status != EnvironmentError || st.Query != nil || len(st.Queued) > 0 {
		t.Errorf("state after the failure: %+v", st)
	}
	if got := converse(t, s, "b"); got != "at last" {
		t.Errorf("the next query said %q", got)
	}
	inOrder(t, logOf(t, s), runnerscripts.TypeEnvironmentCreating, runnerscripts.TypeEnvironmentError,
		runnerscripts.TypeQueryFailed, runnerscripts.TypeEnvironmentCreating, runnerscripts.TypeEnvironmentReady,
		runnerscripts.TypeQueryCompleted)
}

func TestAFailedCreationTellsItsKind(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		sandbox environment.Sandbox
		want    runnerscripts.FailureCode
	}{
		"no engine":     {environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: "debian"}, Provider: &docker.Provider{Host: "unix:///nowhere/docker.sock"}}, runnerscripts.FailUnavailable},
		"no such image": {environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: "agentenv-test-nowhere"}, Provider: &docker.Provider{Pull: docker.PullNever}}, runnerscripts.FailInvalidRequest},
		"no such user":  {environment.Sandbox{Type: "local", Spec: primitives.Spec{User: "agentenv-test-nobody"}}, runnerscripts.FailInvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := scripted(t, steps(say("never")))
			cfg.Environment.Sandbox = tt.sandbox
			s := start(t, cfg)
			_, err := prompt(t, s, "a").Wait(t.Context())
			if failed, ok := errors.AsType[*QueryError](err); !ok || failed.Failure.Code != tt.want {
				t.Errorf("the query: %v", err)
			}
			events := logOf(t, s)
			at := slices.IndexFunc(events, func(e runnerscripts.Event) bool { return e.Type == runnerscripts.TypeEnvironmentError })
			if at < 0 || !strings.Contains(string(events[at].Payload), `"`+string(tt.want)+`"`) {
				t.Errorf("events: %v", events)
			}
		})
	}
}

func TestAFailedPreparationIsNotMistakenForAReadySandbox(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("never")))
	cfg.Environment.Scripts.SetupSession = []string{"/bin/sh", "-c", "echo broken >&2; exit 3"}
	s := start(t, cfg)
	for range 2 {
		_, err := prompt(t, s, "a").Wait(t.Context())
		var script *environment.ScriptError
		if !errors.As(err, &script) || script.Script != runnerscripts.SetupSession {
			t.Fatalf("query after a failed preparation: %v", err)
		}
	}
	events := logOf(t, s)
	if count(events, runnerscripts.TypeEnvironmentReady) != 0 || count(events, runnerscripts.TypeEnvironmentCreating) != 2 {
		t.Errorf("events: %v", typesOf(events))
	}
}

func TestACrashOfTheRunnerFailsTheQueryAndNotTheSession(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("half"), runnerscripts.ScenarioStep{Crash: 7}), steps(say("alive"))))
	_, err := prompt(t, s, "a").Wait(t.Context())
	var script *environment.ScriptError
	if !errors.As(err, &script) || script.Status.Code != 7 {
		t.Errorf("query of a runner that crashed: %v", err)
	}
	if got := converse(t, s, "b"); got == "" {
		t.Error("the next query said nothing")
	}
	if n := count(logOf(t, s), runnerscripts.TypeQueryFailed); n != 1 {
		t.Errorf("%d query_failed events", n)
	}
}

func TestAQueryThatFailsTellsTheAgentsOwnReason(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(runnerscripts.ScenarioStep{
		Fail: &runnerscripts.ScriptFailure{Code: runnerscripts.FailAPI, Message: "try later"},
	})))
	_, err := prompt(t, s, "a").Wait(t.Context())
	var failed *QueryError
	if !errors.As(err, &failed) || failed.Failure.Code != runnerscripts.FailAPI || failed.Failure.Message != "try later" {
		t.Errorf("query that failed: %v", err)
	}
}

func TestBadInputIsRefusedWithWhatIsWrong(t *testing.T) {
	t.Parallel()
	good := scripted(t, steps(say("x")))
	s := start(t, good)
	if _, err := s.Prompt(t.Context(), ""); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("empty prompt: %v", err)
	}
	if err := s.SetOptions(t.Context(), Options{}); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "neither a model nor a mode") {
		t.Errorf("empty options: %v", err)
	}
	if err := s.Respond(t.Context(), "nobody", runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); !errors.Is(err, ErrNotPending) {
		t.Errorf("answer to nothing: %v", err)
	}
	if _, err := s.OpenFile(t.Context(), "a"); !errors.Is(err, ErrNoEnvironment) {
		t.Errorf("file without a sandbox: %v", err)
	}
	for says, change := range map[string]func(*Config){ // without names of Go: users of a server see it, too
		"the agent has no name":         func(c *Config) { c.Environment.Agent.Name = "" },
		"the limit of the queue is neg": func(c *Config) { c.MaxQueue = -1 },
		"the idle timeout is negative":  func(c *Config) { c.IdleTimeout = -1 },
		"a reader can be read only once": func(c *Config) {
			c.Environment.Workspace = []environment.Source{{Tar: &environment.Tar{Reader: strings.NewReader("")}}}
		},
	} {
		cfg := good
		change(&cfg)
		if _, err := Open(t.Context(), cfg); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	good.ID = "unknown"
	if _, err := Open(t.Context(), good); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("unknown session: %v", err)
	}
}

func TestAClosedSessionTakesNoCalls(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(say("x"))))
	turn := prompt(t, s, "a")
	complete(t, turn)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	_, promptErr := s.Prompt(ctx, "b")
	_, filesErr := s.Files(ctx, environment.FilesOptions{})
	_, transcriptErr := s.Transcript(ctx)
	_, eventsErr := Reduce(s.Events(ctx, 0))
	_, turnErr := Reduce(turn.Events(ctx))
	for name, err := range map[string]error{
		"prompt": promptErr, "files": filesErr, "transcript": transcriptErr, "events": eventsErr, "turn events": turnErr,
		"interrupt": s.Interrupt(ctx), "options": s.SetOptions(ctx, Options{Mode: "default"}),
		"respond":   s.Respond(ctx, "x", runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}),
		"terminate": s.TerminateEnvironment(ctx),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after close: %v", name, err)
		}
	}
	if st, err := s.State(ctx); err != nil || st.Environment.Status != EnvironmentTerminated {
		t.Errorf("state after close: %+v, %v", st, err)
	}
}

func TestCloseEndsWhatRunsAndWhatWaits(t *testing.T) {
	t.Parallel()
	s := start(t, scripted(t, steps(forever())))
	running := prompt(t, s, "runs")
	await(t, s, runnerscripts.TypeQueryStarted)
	waiting := prompt(t, s, "waits")
	followed := make(chan error, 1)
	var last runnerscripts.Event
	go func() {
		var err error
		for ev, e := range s.Events(t.Context(), 0) {
			last, err = ev, e
		}
		followed <- err
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, turn := range []*Turn{running, waiting} {
		if done := complete(t, turn); done.StopReason != runnerscripts.StopCancelled {
			t.Errorf("stop reason %q", done.StopReason)
		}
	}
	if err := <-followed; err != nil && !errors.Is(err, ErrClosed) {
		t.Errorf("events of a session that is closed meanwhile: %v", err)
	} else if err == nil && last.Type != runnerscripts.TypeEnvironmentTerminated {
		t.Errorf("the last event is %s", last.Type)
	}
}

func TestDestroyRemovesTheSession(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("x")))
	cfg.Store = store.NewMemory()
	s := start(t, cfg)
	complete(t, prompt(t, s, "a"))
	for range 2 {
		if err := s.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cfg.Store.Load(t.Context(), s.ID()); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("record of a destroyed session: %v", err)
	}
}

func TestCloseEndsTheMakingOfASandbox(t *testing.T) {
	t.Parallel()
	cfg := scripted(t, steps(say("x")))
	entered := make(chan struct{})
	cfg.Create = func(ctx context.Context, _ environment.Config) (*environment.Environment, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s := start(t, cfg)
	turn := prompt(t, s, "a")
	<-entered
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := turn.Wait(t.Context())
	if n := count(logOf(t, s), runnerscripts.TypeQueryFailed) + count(logOf(t, s), runnerscripts.TypeQueryCompleted); n != 1 {
		t.Errorf("the query ended %d times: %v", n, err)
	}
}

func TestOneSessionAsksTheRunnerOnceWhatTheAgentNeeds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	asked, runner := filepath.Join(dir, "asked"), filepath.Join(dir, "envrunner")
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = %s ] && echo \"$*\" >>%s\nexec %s \"$@\"\n", runnerscripts.PrintRecipe, asked, runnerBinary)
	syscall.ForkLock.RLock() // a process that another test starts must not have the script open for writing: it could not be run
	err := os.WriteFile(runner, []byte(script), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	cfg := scripted(t, steps(say("done")))
	cfg.Environment.Runner = runner
	complete(t, prompt(t, start(t, cfg), "hello"))
	if got, err := os.ReadFile(asked); string(got) != "recipe script\n" {
		t.Errorf("the runner was asked %q (%v), want once", got, err)
	}
}
