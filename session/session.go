package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// AgentSession is one conversation with an agent. Its methods may be called from
// several goroutines at once; after Close they return [ErrClosed].
//
// A session holds its state in memory and not its events: those are the store's.
// It belongs to the program that has opened it until it is closed, or the program ends: to
// open it meanwhile is store.ErrLocked.
type AgentSession struct {
	id     string
	cfg    Config
	store  store.Store
	create createFunc
	unlock func() error // gives up the lease of the session
	// durable says that the sandbox outlives the program.
	durable bool
	log     hclog.Logger

	// logMu keeps the events in order: it is held while they are numbered,
	// stored and folded into the state.
	logMu sync.Mutex
	// optionsMu keeps options from being set between the making of a sandbox and
	// its being the session's. It is held before logMu, too.
	optionsMu sync.Mutex
	// saving keeps checkpoints in the order of what they have stored. It is held before logMu.
	saving sync.Mutex
	// promptMu keeps the queue in the order of the events. It is held before
	// logMu, and logMu before mu.
	promptMu sync.Mutex

	mu      sync.Mutex
	state   State
	changed chan struct{} // closed and replaced when the log has grown or ended
	ended   bool          // the log grows no more
	broken  error         // why the log cannot grow any more
	closing bool
	destroy bool

	// reopening are the permission requests that waited when the session was opened: each
	// is closed when it can be answered in this program, or has ended.
	reopening    map[string]chan struct{}
	unfinished   time.Time // since when a sandbox may be left that a program was making; the worker's alone
	readers      int       // of the events
	quiet        time.Time // since when there is neither a query nor a reader, if there is none
	queue        []*Turn
	active       *activeTurn
	sandbox      *liveSandbox
	terminations []chan error

	wake   chan struct{} // has room for one: something for the worker to look at
	cancel context.CancelFunc
	done   chan struct{} // closed when the worker has ended
	err    error         // of closing; readable when done is closed
}

// Open starts a new session, or goes on with the one of cfg.ID: with an id that
// the store does not have the error is store.ErrNotFound, and store.ErrLocked if it is open,
// in this or another program. Where cfg.Environment.Agent names no agent, the configuration is
// the stored one, as it was when the session was opened last. What is not stored is taken from cfg: the values
// of Agent.Env, OnPermission, the Logger, Progress, Trust, Sandbox.Provider and Create. No sandbox is made
// before the first prompt; what environment.Config.Check refuses is refused here.
//
// Another agent than the one of the session continues its conversation, with the files as
// they are; an event of the type transcript_restored says how it got what was said.
//
// Going on with a session whose program died first closes what was left open:
// queries that were running or queued are reported as failed, permission requests
// as withdrawn, its sandbox as terminated.
//
// A durable session, see [Config].Environment, goes on instead: its sandbox is attached to, the
// query that runs there is followed from the first event that is not stored, permission
// requests wait for [AgentSession.Respond] or the new OnPermission, whose timeouts begin again, and
// prompts that were queued run; [AgentSession.Turns] returns them all. A prompt runs once,
// whenever the program died. Only if the sandbox has gone are the running query and its requests
// closed as above, and queued prompts run in a new sandbox.
//
// ctx covers the opening only. The caller must Close the session.
func Open(ctx context.Context, cfg Config) (*AgentSession, error) {
	return open(ctx, cfg, nil)
}

// createFunc makes a sandbox; tests put in one of their own.
type createFunc func(ctx context.Context, cfg environment.Config) (sandbox, error)

func open(ctx context.Context, cfg Config, create createFunc) (*AgentSession, error) {
	return openBranch(ctx, cfg, create, nil)
}

// openBranch opens a session, with b one that Fork has put into the store.
func openBranch(ctx context.Context, cfg Config, create createFunc, b *branch) (*AgentSession, error) {
	cfg, err := cfg.recall(ctx)
	if err == nil {
		cfg, err = cfg.withDefaults()
	}
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	if create == nil {
		if err := cfg.check(ctx); err != nil {
			return nil, fmt.Errorf("open session: %w", err)
		}
		create = environmentCreator(cfg.Create)
	}
	s := &AgentSession{
		id: cfg.ID, cfg: cfg, store: cfg.Store, create: create, durable: cfg.Environment.Sandbox.Keep,
		unlock:  func() error { return nil },
		quiet:   time.Now(),
		state:   newState(),
		changed: make(chan struct{}),
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	if s.id == "" {
		s.id = uuid.NewString()
		s.setLog()
		err = s.begin(ctx)
	} else {
		s.setLog()
		err = s.resume(ctx, b)
	}
	if err == nil && b != nil && b.sandbox != nil {
		err = s.adopt(ctx, b.sandbox, s.options())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open session: %w", err), s.unlock())
	}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	s.log.Info("session opened", "events", s.lastSeq())
	go s.work(work)
	return s, nil
}

// setLog makes the logger of the session, which is that of its environments.
func (s *AgentSession) setLog() {
	cfg := s.cfg.Environment
	s.log = cfg.SafeLogger().With(eventlog.Session, s.id, eventlog.Agent, cfg.Agent.Name)
	if cfg.Sandbox.Type != "" {
		s.log = s.log.With(eventlog.Type, cfg.Sandbox.Type)
	}
}

func (s *AgentSession) begin(ctx context.Context) error {
	s.state.ID, s.state.Agent = s.id, s.cfg.Environment.Agent.Name
	config, err := s.cfg.stored()
	if err != nil {
		return err
	}
	err = s.store.Create(ctx, store.Record{
		ID: s.id, Agent: s.cfg.Environment.Agent.Name, Metadata: s.cfg.Metadata, CreatedAt: time.Now(),
		Status: statusIdle, Config: config,
	})
	if err != nil {
		return err
	}
	return s.lock(ctx)
}

// lock takes the lease of the session.
func (s *AgentSession) lock(ctx context.Context) error {
	unlock, err := s.store.Lock(ctx, s.id)
	if err == nil {
		s.unlock = unlock
	}
	return err
}

// resume rebuilds the state from the log and ends what the last program, or the
// session that it is a branch of, has open.
func (s *AgentSession) resume(ctx context.Context, b *branch) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	rec, err := s.store.Load(ctx, s.id)
	if err != nil {
		return err
	}
	if err := s.state.load(ctx, s.store, rec); err != nil {
		return err
	}
	if err := s.changeAgent(ctx); err != nil {
		return err
	}
	if err := s.storeConfig(ctx); err != nil {
		return err
	}
	switch {
	case b != nil:
		return s.append(ctx, append(b.events(), leftovers(s.state, reasonForked)...)...)
	case s.durable:
		return s.readopt(ctx)
	}
	return s.append(ctx, leftovers(s.state, reasonExpired)...)
}

// changeAgent notes in the log and in the record that another agent than before goes on.
func (s *AgentSession) changeAgent(ctx context.Context) error {
	was, is := s.state.Agent, s.cfg.Environment.Agent.Name
	if was == is {
		return nil
	}
	if was == "" {
		s.state.Agent = is
		return nil
	}
	if err := s.append(ctx, event(runnerscripts.TypeAgentChanged, "", runnerscripts.AgentChanged{Agent: is, From: was})); err != nil {
		return err
	}
	return s.store.Update(ctx, s.id, func(r *store.Record) { r.Agent = is })
}

// leftovers returns the events that end what a state still has open; reason is why
// there is no sandbox.
func leftovers(st State, reason string) []runnerscripts.Event {
	var events []runnerscripts.Event
	for _, p := range st.Pending {
		events = append(events, event(runnerscripts.TypePermissionResolved, "",
			runnerscripts.PermissionResolved{ID: p.ID, Reason: "cancelled"}))
	}
	open := st.Queued
	if st.Query != nil {
		open = append([]QueryState{*st.Query}, open...)
	}
	for _, q := range open {
		events = append(events, event(runnerscripts.TypeQueryFailed, q.ID, runnerscripts.QueryFailed{
			Code:    runnerscripts.FailInternal,
			Message: "prompt again: the program that ran the session ended before the query did",
		}))
	}
	if e := st.Environment.Status; e == EnvironmentReady || e == EnvironmentCreating {
		events = append(events, event(runnerscripts.TypeEnvironmentTerminated, "",
			runnerscripts.EnvironmentTerminated{Reason: reason}))
	}
	return events
}

// ID returns the session's id, under which the store has it.
func (s *AgentSession) ID() string { return s.id }

// State returns where the session stands. It works after Close, too.
func (s *AgentSession) State(context.Context) (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.clone(), nil
}

// Close interrupts the running query, withdraws the queued prompts, stores the
// workspace and ends the sandbox, and returns when all of it is done. The session
// stays in the store; [Open] goes on with it. Closing again returns the same.
//
// Of a durable session Close ends nothing: the query goes on, queued prompts stay queued,
// and the sandbox stays, for [Open]; their turns return [ErrClosed]. Without a program the
// agent's permission requests are rejected after a minute.
func (s *AgentSession) Close() error {
	s.shut(false)
	<-s.done
	return s.err
}

// Destroy closes the session without storing its workspace, ends its sandbox, and removes it from
// the store. It may be called after Close, and more than once.
func (s *AgentSession) Destroy(ctx context.Context) error {
	s.shut(true)
	<-s.done
	err := s.store.Delete(ctx, s.id)
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return errors.Join(s.err, err)
}

func (s *AgentSession) shut(destroy bool) {
	s.mu.Lock()
	s.closing = true
	s.destroy = s.destroy || destroy
	s.mu.Unlock()
	s.cancel()
}

// check returns why the session takes no calls.
func (s *AgentSession) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkLocked()
}

func (s *AgentSession) checkLocked() error {
	switch {
	case s.broken != nil:
		return s.broken
	case s.closing:
		return ErrClosed
	}
	return nil
}

// signal makes the worker look again.
func (s *AgentSession) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
