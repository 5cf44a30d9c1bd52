package environment

import (
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
	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/environment/internal/redact"
	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/internal/audit"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/internal/permission"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Environment is one sandbox that is prepared for one agent. Its methods may be
// called from several goroutines at once, except that one query runs at a time.
type Environment struct {
	prim    primitives.EnvironmentPrimitive
	cfg     Config  // changes only while the environment is made
	profile Profile // that of cfg, with the server of AgentTools
	log     hclog.Logger
	most    int64 // limit of the contents that WorkspaceFiles returns, in bytes
	origin  origin
	scripts *script.Host
	queries *query.Queries
	base    baseline
	gate    *gate.Gate
	meter   *gateway.Meter

	setup    chan struct{} // holds a token while the session is prepared
	prepared bool          // guarded by setup
	first    Setup         // the Setup of a session that the caller does not prepare; never changes

	pausing       sync.Mutex
	resumeOnClose func() (freeze func()) // set while this environment has paused the sandbox: see wake

	mu    sync.Mutex
	hosts []string // set by SetAllowHosts, or those of cfg

	once    sync.Once
	ended   error        // the error of Close
	ignored atomic.Int64 // see Ignored
}

// probeTimeout is how long a sandbox may take to answer that it lives, after something in it has
// failed.
const probeTimeout = 5 * time.Second

// origin says how an environment got its sandbox and what it does with it at Close.
type origin struct {
	release func() error // called by Close; may be nil
	// log is where this machine remembers the sandbox; nil if it does not.
	log *kept.Log
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
	return prepare(ctx, p, cfg, origin{})
}

func prepare(ctx context.Context, p primitives.EnvironmentPrimitive, cfg Config, from origin) (*Environment, error) {
	if err := errors.Join(cfg.check(), cfg.admit(p)); err != nil {
		return nil, err
	}
	policy, names, err := cfg.policies(p.Paths().Workspace)
	if err != nil {
		return nil, err
	}
	if cfg.SessionID == "" {
		cfg.SessionID = uuid.NewString()
	}
	schemas, err := cfg.schemas()
	if err != nil {
		return nil, err
	}
	log := cfg.logOf(p.ID()).With(eventlog.Session, cfg.SessionID)
	var secrets atomic.Pointer[redact.Redactor] // the gateway logs before all its keys and tokens are known
	hide := func(all []string) redact.Redactor {
		r := redact.New(all)
		secrets.Store(&r)
		return r
	}
	hide(secretsOfConfig(cfg))
	audited := &audit.Log{
		Session: cfg.SessionID, Sandbox: p.ID(), Hide: func(text string) string { return secrets.Load().Text(text) },
		Failed: func(err error) { log.Warn(err.Error()) },
	}
	meter := cfg.newMeter(cfg.Session.Used.Add(from.used))
	tools, err := cfg.tools(ctx, p, meter)
	if err != nil {
		return nil, err
	}
	served := cfg.gateConfig(from, meter)
	served.Tools, served.Audit = tools, audited
	asking := &questions{ready: make(chan struct{})}
	asking.serve(cfg, &served)
	opened, err := gate.Open(ctx, p, served)
	if err != nil {
		return nil, err
	}
	cfg.Session.From, cfg.Trust = "", false // this sandbox writes all that follows
	agent, profile := cfg.withAgents(opened.At)
	e := &Environment{
		prim: p, cfg: cfg, origin: from, profile: profile, gate: opened, meter: meter, hosts: cfg.Sandbox.AllowHosts,
		log: log, most: maxListedContent, setup: make(chan struct{}, 1),
	}
	e.scripts = script.NewHost(script.Config{
		Sandbox: p, Own: cfg.Scripts.byName(), Runner: cfg.Runner, Env: cfg.Agent.Env, Kept: from.kept, Check: e.checkAgent, Tell: cfg.tell, Probe: probeTimeout,
		Events: script.Events{Session: cfg.SessionID, Log: e.log, Hide: hide(append(secretsOfConfig(cfg), opened.Secrets()...))},
	})
	e.queries = query.New(query.Config{
		Scripts: e.scripts, Profile: profile, Raw: cfg.Raw, Meter: meter, Gate: opened, Kept: from.log, Attached: from.placed,
		Session: runnerscripts.Session{
			Protocol: runnerscripts.Protocol, SessionID: cfg.SessionID, Agent: agent, Launch: launch(cfg.Agent.Name, p), Paths: p.Paths(), Gateway: opened.At,
			Judged: policy != nil, Asks: asksOf(policy), Denies: deniesOf(policy),
		},
		Permissions: permission.Policy{On: cfg.OnPermission, Timeout: cfg.PermissionTimeout},
		Rules:       policy, Names: names, Audit: audited, Answers: cfg.answersOf(from, p),
		CheckPrompt: schemas.checkPrompt, CheckResult: schemas.checkResult,
		Prepare: e.prepareFor, CheckAwake: e.checkNotPaused, OutOfMemory: e.outOfMemory,
		Grace: runnerscripts.DefaultInterruptGrace, Margin: query.KillMargin,
	})
	asking.begin(e.queries)
	if from.placed {
		e.base.read = func(ctx context.Context) error { return e.base.readFrom(ctx, p, from) }
		return e, nil
	}
	states := e.base.begin(cfg)
	if err := e.place(ctx, cfg.Workspace, states); err != nil {
		return nil, errors.Join(err, opened.Close(), e.base.close())
	}
	e.origin.folders = foldersOf(cfg.Workspace)
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
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	err = e.scripts.CheckAlive(ctx)
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
		running := e.scripts.Close()
		freeze := func() {}
		if len(running) > 0 {
			freeze = e.resumeForClose()
		}
		e.queries.Close()
		for _, p := range running {
			p.Close()
		}
		freeze()
		if e.origin.release != nil {
			e.ended = e.end()
		}
		e.ended = errors.Join(e.ended, e.gate.Close(), e.base.close())
		if e.ended != nil {
			e.log.Warn("environment closed with an error", eventlog.Error, e.ended)
			return
		}
		e.log.Info("environment closed", "kept", e.origin.kept)
	})
	return e.ended
}

// end releases the sandbox. If that ends the sandbox, lists show it as ending meanwhile.
func (e *Environment) end() error {
	if e.origin.log == nil || e.origin.kept {
		return e.origin.release()
	}
	e.origin.log.Note(func(r *kept.Record) { r.Ending = time.Now().UTC() })
	err := e.origin.release()
	if err == nil {
		kept.Forget(e.cfg.Sandbox.Type, e.ID())
	}
	return err
}

// Terminate closes the environment and ends its sandbox, even if the sandbox is kept or another
// program created it. It may be called after Close.
func (e *Environment) Terminate(ctx context.Context) error {
	_, err := e.prim.Terminate(context.WithoutCancel(ctx))
	if err == nil {
		kept.Forget(e.cfg.Sandbox.Type, e.ID())
	}
	return errors.Join(err, e.Close())
}

// Pause freezes the sandbox and all its processes until [Environment.Resume]. A running query
// waits too, but its deadlines do not. What Interrupt, SetMode and SetModel ask the agent for
// happens after Resume. Usage, Snapshot and Close work as before; Close pauses the sandbox again
// if it leaves the sandbox alive. Other methods return primitives.ErrUnavailable until Resume.
// Errors are those of primitives.Pause.
func (e *Environment) Pause(ctx context.Context) error {
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if err := primitives.Pause(ctx, e.prim); err != nil {
		return err
	}
	outlives := context.WithoutCancel(ctx)
	e.resumeOnClose = func() (freeze func()) { return e.wake(outlives) }
	return nil
}

// Resume lets the processes of a paused sandbox continue.
func (e *Environment) Resume(ctx context.Context) error {
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if err := primitives.Resume(ctx, e.prim); err != nil {
		return err
	}
	e.resumeOnClose = nil
	return nil
}

// checkNotPaused returns an error if the sandbox is paused: a live agent in it could neither work nor
// end.
func (e *Environment) checkNotPaused(ctx context.Context) error {
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if e.resumeOnClose == nil {
		return nil
	}
	paused, err := e.isPaused(ctx)
	switch {
	case err != nil:
		return err
	case paused:
		return fmt.Errorf("%w: it is paused; resume it", primitives.ErrUnavailable)
	}
	e.resumeOnClose = nil
	return nil
}

// isPaused asks the sandbox, because another program may have resumed it.
func (e *Environment) isPaused(ctx context.Context) (bool, error) {
	state, err := e.prim.Poll(ctx)
	return state.Status == primitives.StatusPaused, err
}

// resumeForClose resumes a paused sandbox, so that processes in it can end. The function it returns
// pauses the sandbox again if the sandbox outlives the environment.
func (e *Environment) resumeForClose() (freeze func()) {
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if e.resumeOnClose == nil {
		return func() {}
	}
	return e.resumeOnClose()
}

// wake resumes the sandbox so that Close can shut processes down. ctx is that of Pause, because
// Close has none.
func (e *Environment) wake(ctx context.Context) (freeze func()) {
	resuming, cancel := context.WithTimeout(ctx, e.scripts.Probe)
	defer cancel()
	paused, err := e.isPaused(resuming)
	ends := e.origin.release != nil && !e.origin.kept
	// Resume also if Poll reports that it runs: this handle may not know.
	if rerr := primitives.Resume(resuming, e.prim); rerr != nil || err != nil || !paused || ends {
		return func() {} // how the processes end shows what is wrong
	}
	return func() {
		pausing, cancel := context.WithTimeout(ctx, e.scripts.Probe)
		defer cancel()
		if err := primitives.Pause(pausing, e.prim); err != nil {
			e.log.Warn("could not pause the sandbox again", "error", err)
		}
	}
}
