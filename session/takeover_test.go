package session

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// sharedStore is a store of several programs, for which the test says what the others do.
type sharedStore struct {
	*store.Memory
	mu        sync.Mutex
	abandoned []string
	lost      []string
	taken     bool   // another program has the sessions: changes are refused
	away      error  // of Load
	load      func() // called by Load if it is not nil
	locked    []string
}

func (s *sharedStore) Owner(context.Context, string) (string, error) { return "", nil }

func (s *sharedStore) Abandoned(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.abandoned
	s.abandoned = nil // one that is looked at is opened or released
	return ids, nil
}

func (s *sharedStore) Lost() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lost)
}

func (s *sharedStore) Lock(ctx context.Context, id string) (func() error, error) {
	s.mu.Lock()
	s.locked = append(s.locked, id)
	s.mu.Unlock()
	return s.Memory.Lock(ctx, id)
}

func (s *sharedStore) Load(ctx context.Context, id string) (store.Record, error) {
	s.mu.Lock()
	err, load := s.away, s.load
	s.mu.Unlock()
	if load != nil {
		load()
	}
	if err != nil {
		return store.Record{}, &store.Error{Op: "load", ID: id, Err: err}
	}
	return s.Memory.Load(ctx, id)
}

func (s *sharedStore) refused(op, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken {
		return &store.Error{Op: op, ID: id, Err: store.ErrConflict}
	}
	return nil
}

func (s *sharedStore) Append(ctx context.Context, id string, events ...runnerscripts.Event) error {
	if err := s.refused("append", id); err != nil {
		return err
	}
	return s.Memory.Append(ctx, id, events...)
}

func (s *sharedStore) Update(ctx context.Context, id string, change func(*store.Record)) error {
	if err := s.refused("update", id); err != nil {
		return err
	}
	return s.Memory.Update(ctx, id, change)
}

func (s *sharedStore) Delete(ctx context.Context, id string) error {
	if err := s.refused("delete", id); err != nil {
		return err
	}
	return s.Memory.Delete(ctx, id)
}

// left stores a session as a program leaves it that dies, with a query in its queue or without one.
func left(t *testing.T, st store.Store, id string, query bool) {
	t.Helper()
	config, err := Config{Environment: environment.Config{
		Sandbox: environment.Sandbox{Type: "local"}, Agent: environment.Agent{Name: "script"},
	}}.stored()
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Create(t.Context(), store.Record{ID: id, Agent: "script", Config: config, CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if !query {
		return
	}
	queued := event(runnerscripts.TypeQueryQueued, "q", runnerscripts.QueryStarted{Prompt: "go"})
	queued.Seq, queued.SessionID = 1, id
	if err := st.Append(t.Context(), id, queued); err != nil {
		t.Fatal(err)
	}
}

func TestTheSessionsOfADeadProgramAreTakenOver(t *testing.T) {
	t.Parallel()
	st := &sharedStore{Memory: store.NewMemory()}
	h := host(t, HostConfig{Store: st, Session: Config{Environment: environment.Config{Runner: runnerBinary}}})
	left(t, st, "idle", false)
	left(t, st, "running", true)
	st.abandoned, st.away = []string{"idle", "running"}, store.ErrUnavailable
	if err := h.TakeOver(t.Context()); !errors.Is(err, store.ErrUnavailable) || h.Opened("running") != nil {
		t.Errorf("while the store is away: %v", err)
	}
	st.away = nil
	if err := h.TakeOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.Opened("running") == nil {
		t.Error("a session with a query is not opened, after it could not be opened once")
	}
	if h.Opened("idle") != nil || !slices.Contains(st.locked, "idle") {
		t.Errorf("a session without a query is open, or its lease was not released; locked: %q", st.locked)
	}
	n := len(st.locked)
	if err := h.TakeOver(t.Context()); err != nil || len(st.locked) != n {
		t.Errorf("again: %v, locked %q", err, st.locked[n:])
	}
}

func TestASessionThatAnotherProgramHasEndsHere(t *testing.T) {
	t.Parallel()
	st := &sharedStore{Memory: store.NewMemory()}
	h := host(t, HostConfig{Store: st})
	s, err := h.Create(t.Context(), scripted(t, steps(say("x"))))
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		for _, err := range s.Events(t.Context(), 1) {
			read <- err
		}
	}()
	st.mu.Lock()
	st.lost, st.taken = []string{s.ID()}, true
	st.mu.Unlock()
	if err := h.TakeOver(t.Context()); err != nil || h.Opened(s.ID()) != nil {
		t.Errorf("%v; open %v", err, h.Opened(s.ID()) != nil)
	}
	if err := <-read; !errors.Is(err, store.ErrConflict) {
		t.Errorf("a reader: %v", err)
	}
	if _, err := s.Prompt(t.Context(), "x"); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a prompt: %v", err)
	}
}

// The lease that was lost is not that under which a session is being opened again.
func TestASessionThatIsBeingOpenedAgainIsNotEnded(t *testing.T) {
	t.Parallel()
	st := &sharedStore{Memory: store.NewMemory()}
	h := host(t, HostConfig{Store: st, Session: Config{Environment: environment.Config{Runner: runnerBinary}}})
	left(t, st, "s", false)
	loading, loaded := make(chan struct{}), make(chan struct{})
	var once sync.Once
	st.load = func() { once.Do(func() { close(loading); <-loaded }) }
	opened := make(chan error)
	go func() {
		_, err := h.Open(t.Context(), "s")
		opened <- err
	}()
	<-loading
	st.mu.Lock()
	st.lost = []string{"s"}
	st.mu.Unlock()
	taken := make(chan error)
	go func() { taken <- h.TakeOver(t.Context()) }()
	select {
	case err := <-taken:
		if err != nil {
			t.Error(err)
		}
		close(loaded)
	case <-time.After(time.Minute):
		t.Error("it waits for the session, to end it")
		close(loaded)
		<-taken
	}
	if err := <-opened; err != nil || h.Opened("s") == nil {
		t.Errorf("%v; open %v", err, h.Opened("s") != nil)
	}
}

// A program that has lost a session to another one must not end the kept sandbox in which that one works, or remove the session.
func TestTheSandboxOfAnotherProgramIsNotEnded(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*AgentSession) error{
		"terminate": func(s *AgentSession) error { return s.TerminateEnvironment(t.Context()) },
		"destroy":   func(s *AgentSession) error { return s.Destroy(t.Context()) },
	} {
		st, f := &sharedStore{Memory: store.NewMemory()}, newFake()
		cfg := Config{Store: st}
		cfg.Environment.Sandbox.Keep = true
		s := startFake(t, cfg, f)
		complete(t, prompt(t, s, "x"))
		awaitFrom(t, s, 1, runnerscripts.TypeSessionIdle)
		st.mu.Lock()
		st.taken = true
		st.mu.Unlock()
		if err := end(s); !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: %v", name, err)
		}
		f.mu.Lock()
		if f.removed || !f.closed {
			t.Errorf("%s: the sandbox was ended %v, closed %v", name, f.removed, f.closed)
		}
		f.mu.Unlock()
		if _, err := st.Load(t.Context(), s.ID()); err != nil {
			t.Errorf("%s: the session: %v", name, err)
		}
	}
}

// The lease of a session that is removed is released after the removal, so that no other program has it in between.
func TestASessionIsRemovedUnderItsLease(t *testing.T) {
	t.Parallel()
	st := &sharedStore{Memory: store.NewMemory()}
	s := startFake(t, Config{Store: st}, newFake())
	held := false
	under := &deleting{sharedStore: st, on: func() {
		_, err := st.Lock(t.Context(), s.ID())
		held = errors.Is(err, store.ErrLocked)
	}}
	s.store = under
	if err := s.Destroy(t.Context()); err != nil || !held {
		t.Errorf("%v; under its lease %v", err, held)
	}
}

// deleting calls on before each Delete.
type deleting struct {
	*sharedStore
	on func()
}

func (d *deleting) Delete(ctx context.Context, id string) error {
	d.on()
	return d.sharedStore.Delete(ctx, id)
}

// A query that has not reached its sandbox when the session is closed stays queued, as those behind it do.
func TestAQueryThatIsNotSentYetStaysQueued(t *testing.T) {
	t.Parallel()
	st, creating := store.NewMemory(), make(chan struct{})
	cfg := fakeConfig(Config{Store: st})
	cfg.Environment.Sandbox.Keep = true
	s, err := open(t.Context(), cfg, func(ctx context.Context, _ environment.Config) (sandbox, error) {
		close(creating)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	turn := prompt(t, s, "go")
	<-creating
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := turn.Wait(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("its turn: %v", err)
	}
	state, err := ReadState(t.Context(), st, s.ID())
	if err != nil || len(state.Queued) != 1 || state.Queued[0].ID != turn.ID() {
		t.Errorf("%+v, %v", state.Queued, err)
	}
	cfg.ID = s.ID()
	listed := make(chan struct{}) // the query may be over as soon as there is a sandbox
	again, err := open(t.Context(), cfg, func(context.Context, environment.Config) (sandbox, error) {
		<-listed
		return newFake(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, again)
	turns := again.Turns()
	close(listed)
	if len(turns) != 1 {
		t.Fatalf("it has %d turns", len(turns))
	}
	complete(t, turns[0])
}
