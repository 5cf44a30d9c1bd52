package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Environment is one sandbox that is prepared for one agent. Its methods may be
// called from several goroutines at once, except that one query runs at a time.
type Environment struct {
	prim  primitives.EnvironmentPrimitive
	cfg   Config // Agent is guarded by mu
	log   hclog.Logger
	hide  redact.Redactor
	grace time.Duration // of an interrupt
	// margin is how much longer than that the runner may take to kill the agent.
	margin time.Duration
	probe  time.Duration // how long the sandbox may take to say that it lives
	most   int64         // bytes of the contents that WorkspaceFiles returns
	// maxLine bounds a line of a script; zero is the default of runnerscripts.
	maxLine int
	owner   owner
	runner  runner
	base    baseline
	gate    *gate
	meter   *gateway.Meter
	// activity is nil where nothing is remembered for lists.
	activity *activityLog

	busy     chan struct{} // holds a token while a query runs
	setup    chan struct{} // holds a token while the session is prepared
	prepared bool          // guarded by setup
	first    Setup         // the Setup of a session that the caller does not prepare; never changes

	pausing sync.Mutex
	thaw    func() (freeze func()) // while this environment has paused the sandbox: see wake

	mu     sync.Mutex
	closed bool
	calls  map[int]context.CancelCauseFunc // of what runs, to end it at Close
	call   int
	procs  map[*process]struct{}
	agent  *process     // the execute-query that takes the next prompt
	left   bool         // an agent may be there that this program does not have
	query  *activeQuery // nil if none runs
	model  string       // that SetModel has chosen; empty: that of cfg, which never changes
	mode   string       // that SetMode has chosen, likewise
	hosts  []string     // that SetAllowHosts has chosen, or those of cfg
	once   sync.Once
	ended  error // of Close
}

// activeQuery is what other calls know of the running query. What can change is guarded
// by Environment.mu.
type activeQuery struct {
	id          string
	settled     map[string]bool // permission requests before it was followed; see progress
	detached    bool            // it goes on when the environment is closed; never changes
	proc        *process        // which has the prompt; nil before
	interrupted bool
	stop        chan struct{} // closed when it is interrupted
	requests    openRequests
}

// owner says what an environment does with its sandbox beside using it.
type owner struct {
	release func() error // at Close; may be nil
	// placed says that the workspace holds what it should: nothing is placed.
	placed bool
	// kept says that the sandbox outlives this program, and so should queries.
	kept bool
	// folders are those of this machine that the workspace began with.
	folders []Source
	// baseline is the digest of the sandbox's own record of its beginning.
	baseline string
	// unknown is why this machine does not know how the sandbox was made; nil if it
	// does, or if there was nothing to remember.
	unknown error
	// gateway is that of the program that made the sandbox; nil for none.
	gateway *runnerscripts.Gateway
	// used is what the session has used in the sandbox before.
	used Used
	// agentless says that this machine remembers the sandbox, and no agent of it.
	// Guarded by Environment.setup.
	agentless bool
	// before is the agent that this machine remembers of the sandbox where Config names
	// another one, which continues its conversation; nil for none. Guarded by
	// Environment.setup.
	before *Agent
}

// New prepares any sandbox for an agent. Closing the environment ends what it
// started in the sandbox; the sandbox itself stays the caller's. ctx covers the
// preparation only.
func New(ctx context.Context, p primitives.EnvironmentPrimitive, cfg Config) (*Environment, error) {
	if err := cfg.checkAgent(ctx); err != nil {
		return nil, err
	}
	return prepare(ctx, p, cfg, owner{})
}

func prepare(ctx context.Context, p primitives.EnvironmentPrimitive, cfg Config, own owner) (*Environment, error) {
	if err := errors.Join(cfg.check(), cfg.admit(p)); err != nil {
		return nil, err
	}
	meter := gateway.NewMeter(cfg.Budget, cfg.Used.Add(own.used))
	gate, err := openGate(ctx, p, cfg, own, meter)
	if err != nil {
		return nil, err
	}
	cfg.From, cfg.Trust = "", false // what is written from now on is this sandbox's
	if cfg.SessionID == "" {
		cfg.SessionID = uuid.NewString()
	}
	e := &Environment{
		prim: p, cfg: cfg, owner: own, gate: gate, meter: meter, hosts: cfg.Sandbox.AllowHosts,
		log:    cfg.logOf(p.ID()).With(eventlog.Session, cfg.SessionID),
		hide:   redact.New(append(secretsOfConfig(cfg), gate.secrets...)),
		grace:  runnerscripts.DefaultInterruptGrace,
		margin: killMargin,
		probe:  probeTimeout,
		most:   maxListedContent,
		busy:   make(chan struct{}, 1),
		setup:  make(chan struct{}, 1),
		runner: runner{turn: make(chan struct{}, 1)},
		calls:  make(map[int]context.CancelCauseFunc),
		procs:  make(map[*process]struct{}),
		left:   own.placed,
	}
	if !own.placed {
		if err := e.place(ctx, cfg.Workspace); err != nil {
			return nil, errors.Join(err, gate.close())
		}
		e.owner.folders = foldersOf(cfg.Workspace)
	}
	if err := e.base.take(ctx, p, cfg.notCounted(), own); err != nil {
		return nil, errors.Join(fmt.Errorf("remember the workspace: %w", err), gate.close())
	}
	return e, nil
}

// Used returns what the session's queries have used, with the running one: what the gateway
// has counted, and the time.
func (e *Environment) Used() Used { return e.meter.Used() }

// ID returns the sandbox's identity, for [Attach].
func (e *Environment) ID() string { return e.prim.ID() }

// SessionID returns the id of the conversation.
func (e *Environment) SessionID() string { return e.cfg.SessionID }

// Primitive returns the sandbox itself, for its files and commands.
func (e *Environment) Primitive() primitives.EnvironmentPrimitive { return e.prim }

// Healthy reports whether the sandbox takes calls. It really asks it: nil means
// that it answered. A sandbox that is gone is primitives.ErrUnavailable or
// primitives.ErrTerminated; one that has not answered when ctx is done is the
// context's cause.
func (e *Environment) Healthy(ctx context.Context) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	err = e.gone(ctx)
	if ctx.Err() != nil {
		return fmt.Errorf("health: %w", context.Cause(ctx)) // which says nothing of the sandbox
	}
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	info, err := e.prim.Stat(ctx, e.prim.Paths().Workspace)
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("health: workspace: %w", primitives.ErrNotDirectory)
	}
	return nil
}

// Close interrupts a running query, unless that is detached, ends the runner scripts and watches, and then
// the sandbox if [Create] made it. It returns when all has ended, and may be
// called more than once. Later calls of other methods return [ErrClosed].
func (e *Environment) Close() error {
	e.once.Do(func() {
		e.mu.Lock()
		e.closed = true
		agent, detached := e.agent, e.query != nil && e.query.detached
		procs := make([]*process, 0, len(e.procs))
		for p := range e.procs {
			procs = append(procs, p)
		}
		for _, cancel := range e.calls {
			cancel(ErrClosed)
		}
		e.mu.Unlock()
		freeze := func() {}
		if agent != nil || len(procs) > 0 {
			freeze = e.thawed()
		}
		switch {
		case agent == nil:
		case agent.adopted, detached:
			agent.leave() // it ends by itself after its last user
		default:
			agent.shutdown()
		}
		for _, p := range procs {
			p.close()
		}
		freeze()
		if e.owner.release != nil {
			e.ended = e.end()
		}
		e.ended = errors.Join(e.ended, e.gate.close(), e.base.close())
		if e.ended != nil {
			e.log.Warn("environment closed with an error", eventlog.Error, e.ended)
			return
		}
		e.log.Info("environment closed", "kept", e.owner.kept)
	})
	return e.ended
}

// end lets the sandbox go, or ends it.
func (e *Environment) end() error {
	if e.activity == nil || e.owner.kept {
		return e.owner.release()
	}
	e.activity.change(func(a *activity) { a.Ending = now() })
	err := e.owner.release()
	if err == nil {
		forget(e.cfg.Sandbox.Type, e.ID())
	}
	return err
}

// enter begins a call: its context also ends when the environment is closed. The
// caller calls leave at its end.
func (e *Environment) enter(ctx context.Context) (_ context.Context, leave func(), _ error) {
	ctx, cancel := context.WithCancelCause(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		cancel(nil)
		return nil, nil, ErrClosed
	}
	e.call++
	id := e.call
	e.calls[id] = cancel
	return ctx, func() {
		e.mu.Lock()
		delete(e.calls, id)
		e.mu.Unlock()
		cancel(nil)
	}, nil
}

// enterAlone is enter for a call during which no query of this environment may run. It
// returns [ErrBusy] if one does.
func (e *Environment) enterAlone(ctx context.Context) (_ context.Context, leave func(), _ error) {
	ctx, left, err := e.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	select {
	case e.busy <- struct{}{}:
		return ctx, func() { <-e.busy; left() }, nil
	default:
		left()
		return nil, nil, ErrBusy
	}
}

func (e *Environment) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// adopt makes Close end a process.
func (e *Environment) adopt(p *process) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	e.procs[p] = struct{}{}
	return nil
}

// release ends a process and forgets it.
func (e *Environment) release(p *process) {
	p.close()
	e.forget(p)
}

// forget is for a process that is closed.
func (e *Environment) forget(p *process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.procs, p)
	if e.agent == p {
		e.agent = nil
	}
}

// session is what every request says.
func (e *Environment) session() runnerscripts.Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	agent := e.cfg.Agent
	agent.Model, agent.PermissionMode = cmp.Or(e.model, agent.Model), cmp.Or(e.mode, agent.PermissionMode)
	return runnerscripts.Session{
		Protocol:  runnerscripts.Protocol,
		SessionID: e.cfg.SessionID,
		Agent:     agent,
		Paths:     e.prim.Paths(),
		Gateway:   e.gate.at,
	}
}

func now() time.Time { return time.Now().UTC() }
