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

// AgentSession is a conversation with an agent. Its methods may be called from several
// goroutines at once; after Close they return [ErrClosed].
//
// A session keeps its state in memory and its events in the store. It belongs to the program
// that opened it until it is closed or the program ends. Opening it elsewhere meanwhile returns
// store.ErrLocked.
type AgentSession struct {
	id     string
	cfg    Config
	store  store.Store
	create createFunc
	unlock func() error // releases the lease of the session
	// durable says that the sandbox outlives the program.
	durable bool
	log     hclog.Logger

	// logMu orders the events: it is held while they are numbered, stored and folded into the
	// state.
	logMu sync.Mutex
	// optionsMu prevents SetOptions from running between the creation of a sandbox and its
	// adoption. Lock it before logMu.
	optionsMu sync.Mutex
	// saving orders checkpoints. Lock it before logMu.
	saving sync.Mutex
	// uploading orders calls of WriteWorkspace. Lock it before promptMu.
	uploading sync.Mutex
	// pruning prevents that checkpoints are pruned. Lock it after saving and before logMu.
	pruning sync.Mutex
	// removed says that no pruned checkpoint has anything left in the store. saving guards it.
	removed bool
	// promptMu keeps the queue in the order of the events. Lock it before logMu, and logMu
	// before mu.
	promptMu sync.Mutex

	mu      sync.Mutex
	state   State
	changed chan struct{} // closed and replaced when the log grows or ends
	ended   bool          // the log is closed
	broken  error         // why appending to the log failed
	closing bool
	destroy bool

	// reopening are the permission requests that were pending when the session was opened. A
	// channel is closed when this program can answer the request, or when the request has
	// ended.
	reopening    map[string]chan struct{}
	unfinished   time.Time // creation time of a sandbox that a dead program may have left unfinished; used by the worker only
	readers      int       // number of readers of the events
	quiet        time.Time // since when there is neither a query nor a reader
	queue        []*Turn
	active       *activeTurn
	sandbox      *liveSandbox
	terminations []chan error

	wake   chan struct{} // buffered signal that the worker has work
	cancel context.CancelFunc
	done   chan struct{} // closed when the worker has ended
	err    error         // error of closing; valid after done is closed
}

// Open starts a new session, or continues the session cfg.ID. It returns store.ErrNotFound if
// the store has no such session, and store.ErrLocked if the session is open in this or another
// program. If cfg.Environment.Agent names no agent, Open uses the configuration with which the
// session was last opened. Fields that are not stored come from cfg: the values of Agent.Env,
// OnPermission, Logger, Progress, Trust, AgentTools, CountTo, Sandbox.Provider and Create. Open returns the errors
// of environment.Config.Check, but the sandbox is created with the first prompt.
//
// If cfg names another agent, that agent continues the conversation with the current files. A
// transcript_restored event says how it received the conversation.
//
// If the program of the session died, Open first closes what was left open: running and queued
// queries as failed, and permission requests as withdrawn. A sandbox that is still in its grace
// period is used again, with all that the agent has changed in it; otherwise it is closed as
// terminated.
//
// A durable session continues instead; see [Config].Environment. Open attaches to its sandbox
// and follows the running query from the first event that is not stored. Pending permission
// requests wait for [AgentSession.Respond] or the new OnPermission, and their timeouts restart.
// Queued prompts run. [AgentSession.Turns] returns all of these queries. Each prompt runs once,
// whenever the program died. Only if the sandbox is gone, Open closes the running query and its
// requests as above, and queued prompts run in a new sandbox.
//
// ctx covers the opening only. The caller must Close the session.
func Open(ctx context.Context, cfg Config) (*AgentSession, error) {
	return open(ctx, cfg, nil)
}

// createFunc creates a sandbox; tests replace it.
type createFunc func(ctx context.Context, cfg environment.Config) (sandbox, error)

func open(ctx context.Context, cfg Config, create createFunc) (*AgentSession, error) {
	return openBranch(ctx, cfg, create, nil)
}

// openBranch opens a session; b is nil unless Fork has added the session to the store or its
// sandbox was moved.
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

// setLog sets the logger of the session and its environments.
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

// lock acquires the lease of the session.
func (s *AgentSession) lock(ctx context.Context) error {
	unlock, err := s.store.Lock(ctx, s.id)
	if err == nil {
		s.unlock = unlock
	}
	return err
}

// resume rebuilds the state from the log, and ends what the last program, or the parent of a
// fork, left open.
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
	if b != nil {
		return s.append(ctx, b.events(s.state)...)
	}
	return s.readopt(ctx)
}

// changeAgent records in the log and in the record that another agent continues.
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

// leftovers returns the events that end the open items of a state. reason says why there is no
// sandbox, and end returns the last event of an open query.
func leftovers(st State, reason string, end func(query string) runnerscripts.Event) []runnerscripts.Event {
	var events []runnerscripts.Event
	for _, p := range st.Pending {
		events = append(events, event(runnerscripts.TypePermissionResolved, "",
			runnerscripts.PermissionResolved{ID: p.ID, Reason: runnerscripts.ReasonCancelled}))
	}
	open := st.Queued
	if st.Query != nil {
		open = append([]QueryState{*st.Query}, open...)
	}
	for _, q := range open {
		events = append(events, end(q.ID))
	}
	if e := st.Environment.Status; e == EnvironmentReady || e == EnvironmentCreating {
		events = append(events, event(runnerscripts.TypeEnvironmentTerminated, "",
			runnerscripts.EnvironmentTerminated{Reason: reason}))
	}
	return events
}

// lost returns the end of a query that went with its program.
func lost(query string) runnerscripts.Event {
	return event(runnerscripts.TypeQueryFailed, query, runnerscripts.QueryFailed{
		Code:    runnerscripts.FailInternal,
		Message: "prompt again: the program that ran the session ended before the query did",
	})
}

// cancelled returns the end of a query that no agent gets: its prompt was withdrawn, or it was open in the session of a
// fork.
func cancelled(query string) runnerscripts.Event {
	return event(runnerscripts.TypeQueryCompleted, query, runnerscripts.QueryCompleted{StopReason: runnerscripts.StopCancelled})
}

// ID returns the session's ID in the store.
func (s *AgentSession) ID() string { return s.id }

// State returns the state of the session, even after Close.
func (s *AgentSession) State(context.Context) (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.clone(), nil
}

// Close interrupts the running query, withdraws the queued prompts, stores the workspace, ends
// the sandbox, and returns when all of this is done. The session stays in the store; [Open]
// continues it. Later calls return the same error.
//
// In a durable session Close ends nothing: the query continues, queued prompts stay queued, and
// the sandbox stays for [Open]; their turns return [ErrClosed]. While no program is attached,
// the agent's permission requests are rejected after a minute.
func (s *AgentSession) Close() error {
	s.shut(false)
	<-s.done
	return s.err
}

// Destroy closes the session without storing its workspace, ends its sandbox, and removes the
// session from the store. It may be called after Close, and more than once.
func (s *AgentSession) Destroy(ctx context.Context) error {
	s.shut(true)
	<-s.done
	s.saving.Lock() // a second caller must not count its usage again
	defer s.saving.Unlock()
	err := Remove(ctx, s.store, s.id)
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return errors.Join(s.err, err, s.unlock())
}

func (s *AgentSession) shut(destroy bool) {
	s.mu.Lock()
	s.closing = true
	s.destroy = s.destroy || destroy
	s.mu.Unlock()
	s.cancel()
}

// check returns an error if the session does not accept calls.
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

// signal wakes the worker.
func (s *AgentSession) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
