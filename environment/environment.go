package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/gate"
	"github.com/agentenv-dev/agentenv/environment/internal/kept"
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
	grace time.Duration // grace period of an interrupt
	// margin is how much longer than grace the runner may take to kill the agent.
	margin time.Duration
	probe  time.Duration // how long the sandbox may take to answer whether it lives
	most   int64         // limit of the contents that WorkspaceFiles returns, in bytes
	// maxLine limits a line of a script; zero means the default of runnerscripts.
	maxLine int
	owner   owner
	runner  runner
	base    baseline
	gate    *gate.Gate
	meter   *gateway.Meter
	kept    *kept.Log // nil if this machine remembers nothing of the sandbox

	busy     chan struct{} // holds a token while a query runs
	setup    chan struct{} // holds a token while the session is prepared
	prepared bool          // guarded by setup
	first    Setup         // the Setup of a session that the caller does not prepare; never changes

	pausing       sync.Mutex
	resumeOnClose func() (freeze func()) // set while this environment has paused the sandbox: see wake

	mu     sync.Mutex
	closed bool
	calls  map[int]context.CancelCauseFunc // of running calls, to cancel them at Close
	call   int
	procs  map[*process]struct{}
	agent  *process     // the execute-query that takes the next prompt
	left   bool         // an agent of an earlier program may run in the sandbox
	query  *activeQuery // nil if none runs
	model  string       // set by SetModel; empty: that of cfg, which never changes
	mode   string       // set by SetMode, likewise
	hosts  []string     // set by SetAllowHosts, or those of cfg
	once   sync.Once
	ended  error // the error of Close

	ignored atomic.Int64 // see Ignored
}

// activeQuery is what other calls know of the running query. Environment.mu guards what can
// change.
type activeQuery struct {
	id          string
	settled     map[string]bool // permission requests from before it was followed; see progress
	detached    bool            // it continues when the environment is closed; never changes
	proc        *process        // the process that has the prompt; nil before
	interrupted bool
	stop        chan struct{} // closed when it is interrupted
	requests    openRequests
}

// owner says how an environment got its sandbox and what it does with it at Close.
type owner struct {
	release func() error // called by Close; may be nil
	// placed means that the workspace already has its sources.
	placed bool
	// kept means that the sandbox outlives this program, and so should queries.
	kept bool
	// folders are the folders of this machine that the workspace began with.
	folders []Source
	// baseline is the SHA-256 of the baseline that is stored in the sandbox.
	baseline string
	// unknown is why this machine does not know how the sandbox was created; nil if it does, or
	// if nothing had to be stored.
	unknown error
	// gateway is the gateway of the program that created the sandbox; nil for none.
	gateway *runnerscripts.Gateway
	// used is what the session has used in the sandbox before.
	used Used
	// agentless means that this machine's record of the sandbox names no agent. Guarded by
	// Environment.setup.
	agentless bool
	// before is the agent in this machine's record if Config names another agent, which
	// continues its conversation; nil for none. Guarded by Environment.setup.
	before *Agent
}

// New prepares any sandbox for an agent. Closing the environment ends what it started in the
// sandbox; the caller still owns the sandbox itself. ctx covers the preparation only.
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
	opened, err := gate.Open(ctx, p, cfg.gateConfig(own, meter))
	if err != nil {
		return nil, err
	}
	cfg.From, cfg.Trust = "", false // this sandbox writes all that follows
	if cfg.SessionID == "" {
		cfg.SessionID = uuid.NewString()
	}
	e := &Environment{
		prim: p, cfg: cfg, owner: own, gate: opened, meter: meter, hosts: cfg.Sandbox.AllowHosts,
		log:    cfg.logOf(p.ID()).With(eventlog.Session, cfg.SessionID),
		hide:   redact.New(append(secretsOfConfig(cfg), opened.Secrets()...)),
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
	if own.placed {
		e.base.read = func(ctx context.Context) error { return e.base.readFrom(ctx, p, own) }
		return e, nil
	}
	states := e.base.begin(cfg)
	if err := e.place(ctx, cfg.Workspace, states); err != nil {
		return nil, errors.Join(err, opened.Close(), e.base.close())
	}
	e.owner.folders = foldersOf(cfg.Workspace)
	if err := e.base.take(ctx, p, cfg, states); err != nil {
		return nil, errors.Join(fmt.Errorf("remember the workspace: %w", err), opened.Close(), e.base.close())
	}
	return e, nil
}

// Used returns what the session's queries have used, including the running one: what the gateway
// has counted, and the time.
func (e *Environment) Used() Used { return e.meter.Used() }

// ID returns the sandbox's identity, for [Attach].
func (e *Environment) ID() string { return e.prim.ID() }

// SessionID returns the id of the conversation.
func (e *Environment) SessionID() string { return e.cfg.SessionID }

// Primitive returns the sandbox itself, for its files and commands.
func (e *Environment) Primitive() primitives.EnvironmentPrimitive { return e.prim }

// Healthy reports whether the sandbox accepts calls. It asks the sandbox: nil means that the
// sandbox answered. If the sandbox is gone, the error is primitives.ErrUnavailable or
// primitives.ErrTerminated. If it has not answered when ctx is done, the error is the cause of
// ctx.
func (e *Environment) Healthy(ctx context.Context) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	err = e.checkAlive(ctx)
	if ctx.Err() != nil {
		return fmt.Errorf("health: %w", context.Cause(ctx)) // the sandbox itself may be healthy
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

// Close interrupts a running query, unless it is detached, and ends the runner scripts and
// watches. Then it ends the sandbox if [Create] made it and Keep is not set. Close returns when
// all of them have ended, and may be called more than once. Later calls of other methods return
// [ErrClosed].
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
			freeze = e.resumeForClose()
		}
		switch {
		case agent == nil:
		case agent.adopted, detached:
			agent.leave() // the agent ends by itself after its last client
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
		e.ended = errors.Join(e.ended, e.gate.Close(), e.base.close())
		if e.ended != nil {
			e.log.Warn("environment closed with an error", eventlog.Error, e.ended)
			return
		}
		e.log.Info("environment closed", "kept", e.owner.kept)
	})
	return e.ended
}

// end releases the sandbox. If that ends the sandbox, lists show it as ending meanwhile.
func (e *Environment) end() error {
	if e.kept == nil || e.owner.kept {
		return e.owner.release()
	}
	e.kept.Note(func(r *kept.Record) { r.Ending = now() })
	err := e.owner.release()
	if err == nil {
		kept.Forget(e.cfg.Sandbox.Type, e.ID())
	}
	return err
}

// enter begins a call. The returned context also ends when the environment is closed. The caller
// calls leave at the end of the call.
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

// enterAlone is enter for a call that must not overlap a query of this environment. It returns
// [ErrBusy] if a query runs.
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

// adopt registers a process, which Close then ends.
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

// forget removes a closed process.
func (e *Environment) forget(p *process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.procs, p)
	if e.agent == p {
		e.agent = nil
	}
}

// session returns the part that all requests share.
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
		Gateway:   e.gate.At,
	}
}

func now() time.Time { return time.Now().UTC() }
