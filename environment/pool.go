package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// PoolConfig says how many sandboxes a [Pool] has. The zero value means no pool.
type PoolConfig struct {
	// Size is how many sandboxes the pool keeps ready; zero means none.
	Size int `json:"size,omitempty"`
	// Max is how many environments of the pool may be open at once: [Pool.Create] waits
	// until one is closed. Zero means no limit.
	Max int `json:"max,omitempty"`
}

// check returns an error for negative numbers.
func (c PoolConfig) check() error {
	if c.Size < 0 || c.Max < 0 {
		return fmt.Errorf("%w: pool: its size and max are positive numbers; leave out pool for none", ErrConfig)
	}
	return nil
}

// Pool keeps sandboxes ready, so that creating an environment does not wait for a new sandbox:
// taking one is a single round trip. A sandbox is used once. The pool replaces each sandbox that
// it hands out, in the background. Its methods may be called from several goroutines at once.
//
// [Pool.Create] has the signature of session.Config.Create.
type Pool struct {
	cfg  Config
	make func(context.Context) (primitives.EnvironmentPrimitive, error) // creates a sandbox
	log  hclog.Logger
	// patience is the delay after a sandbox could not be created; it doubles up to maxPatience.
	patience time.Duration

	open  chan struct{}                        // a token for each open environment; nil for no limit
	ready chan primitives.EnvironmentPrimitive // has room for all sandboxes
	need  chan struct{}                        // a token for each missing sandbox

	mu     sync.Mutex // guards closed; no task is added once closed is set
	closed bool
	stop   context.CancelFunc
	// closing is closed when Close begins.
	closing <-chan struct{}
	tasks   sync.WaitGroup
	done    chan struct{} // closed when all sandboxes have ended and ended is set
	ended   error
}

const (
	// poolWorkers is how many sandboxes are created at the same time.
	poolWorkers = 2
	minPatience = time.Second
	maxPatience = time.Minute
	// aliveTimeout limits how long take checks sandboxes, one after the other, for one that is
	// alive; after that it creates a new sandbox.
	aliveTimeout = 5 * time.Second
)

// NewPool starts to create cfg.Pool.Size sandboxes and returns at once. It creates them with the
// Sandbox and Runner of cfg for its Agent; if that has no name, [Pool.Create] chooses the agent.
// All other fields of cfg are the defaults of [Pool.Create]: Credentials and Budget, for example,
// apply to each environment by itself. Fields that belong to one environment are [ErrConfig]:
// Name, Workspace, SessionID, Session and Record. So is Keep: the sandboxes in a pool end with its
// program. The caller must Close the pool. NewPool uses only the values of ctx.
func NewPool(ctx context.Context, cfg Config) (*Pool, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := cfg.Sandbox.check(); err != nil {
		return nil, err
	}
	switch {
	case cfg.Pool == PoolConfig{}:
		return nil, fmt.Errorf("%w: pool: it is empty; say how many sandboxes to keep ready, or how many may be open at once", ErrConfig)
	case cfg.Name != "":
		return nil, fmt.Errorf("%w: name: the sandboxes of a pool have none; leave it out", ErrConfig)
	case cfg.Workspace != nil, cfg.SessionID != "", cfg.Record != "", !reflect.ValueOf(cfg.Session).IsZero():
		return nil, fmt.Errorf("%w: workspace, session_id, record, Session: each environment of a pool has its own; give them to Pool.Create", ErrConfig)
	case cfg.Sandbox.Keep:
		return nil, fmt.Errorf("%w: sandbox.keep: what waits in a pool ends with its program; leave it out", ErrConfig)
	case cfg.Sandbox.Name != "":
		return nil, fmt.Errorf("%w: sandbox.name: the sandboxes of a pool cannot share a name; leave it out", ErrConfig)
	}
	cfg = cfg.withRedactingLogger()
	if err := cfg.checkAgent(ctx); err != nil {
		return nil, err
	}
	return newPool(ctx, cfg, cfg.createSandbox, minPatience), nil
}

func newPool(ctx context.Context, cfg Config, create func(context.Context) (primitives.EnvironmentPrimitive, error), patience time.Duration) *Pool {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	p := &Pool{
		cfg: cfg, make: create, log: cfg.SafeLogger(), patience: patience, stop: stop,
		ready: make(chan primitives.EnvironmentPrimitive, cfg.Pool.Size), need: make(chan struct{}, cfg.Pool.Size),
		done: make(chan struct{}), closing: ctx.Done(),
	}
	if cfg.Pool.Max > 0 {
		p.open = make(chan struct{}, cfg.Pool.Max)
	}
	for range cfg.Pool.Size {
		p.need <- struct{}{}
	}
	for range min(poolWorkers, cfg.Pool.Size) {
		p.tasks.Go(func() { p.fill(ctx) })
	}
	go func() {
		defer close(p.done)
		<-ctx.Done()
		p.tasks.Wait()
		p.ended = p.empty(context.WithoutCancel(ctx))
	}()
	return p
}

// fill creates missing sandboxes until ctx is done.
func (p *Pool) fill(ctx context.Context) {
	patience := p.patience
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.need:
		}
		w, err := p.make(ctx)
		if err == nil {
			p.ready <- w // there is room for each token
			patience = p.patience
			continue
		}
		p.need <- struct{}{}
		if ctx.Err() != nil {
			return
		}
		p.log.Warn("sandbox for the pool cannot be made", "error", err, "next_try", patience)
		timer := time.NewTimer(patience)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		patience = min(2*patience, maxPatience)
	}
}

// Ready returns how many sandboxes are ready at the moment.
func (p *Pool) Ready() int { return len(p.ready) }

// Create is [Create] with a sandbox of the pool. It waits while Config.Pool.Max environments are
// open; copies by [Environment.Fork] do not count. It never returns a sandbox that died in the
// pool. If none is ready it creates one, and its errors are those of Create.
//
// Sandbox, Pool and Runner are those of the pool; cfg must leave each out or have the same
// (functions and loggers in it do not count), and so must the name of the Agent if the pool has
// one. Each other field of cfg replaces the pool's if it is not zero; an Agent without a name
// replaces only the Env. Other sandboxes, and Keep, are [ErrConfig]. After Close the error is
// [ErrClosed]. In both cases Create creates nothing.
func (p *Pool) Create(ctx context.Context, cfg Config) (*Environment, error) {
	cfg, err := p.adjust(ctx, cfg)
	if err != nil {
		return nil, err
	}
	leave, err := p.enter(ctx)
	if err != nil {
		return nil, err
	}
	w, refill, err := p.take(ctx)
	if err == nil && cfg.keepsPath() && w.Paths().Workspace != cfg.Session.KeepPath {
		p.discard(ctx, w)
		if w, err = cfg.createSandbox(ctx); err != nil {
			refill()
		}
	}
	if err != nil {
		leave()
		return nil, err
	}
	defer refill() // not before: creating a sandbox slows down this call
	release := func() error {
		defer leave()
		return end(ctx, w)
	}
	e, err := prepare(ctx, w, cfg, origin{release: release})
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return e, nil
}

// enter waits until one more environment may be open. The caller calls leave when that
// environment has ended.
func (p *Pool) enter(ctx context.Context) (leave func(), _ error) {
	if p.open == nil {
		return func() {}, nil
	}
	select {
	case p.open <- struct{}{}:
		return func() { <-p.open }, nil
	case <-p.closing:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for one of %d environments of the pool to be closed: %w", cap(p.open), context.Cause(ctx))
	}
}

// adjust fills in the settings of the pool, and returns an error for settings that contradict
// them.
func (p *Pool) adjust(ctx context.Context, cfg Config) (Config, error) {
	own := p.cfg
	switch {
	case !reflect.ValueOf(cfg.Sandbox).IsZero() && !cfg.Sandbox.equal(own.Sandbox):
		return cfg, fmt.Errorf("%w: sandbox: the pool's sandboxes are made already; leave it out", ErrConfig)
	case cfg.Pool != PoolConfig{} && cfg.Pool != own.Pool:
		return cfg, fmt.Errorf("%w: pool: this is another pool; leave it out", ErrConfig)
	case cfg.Runner != "" && cfg.Runner != own.Runner:
		return cfg, fmt.Errorf("%w: runner: the pool has its own; leave it out", ErrConfig)
	case cfg.Name != "":
		return cfg, fmt.Errorf("%w: name: the sandboxes of a pool have none; leave it out", ErrConfig)
	case own.Agent.Name != "" && cfg.Agent.Name != "" && cfg.Agent.Name != own.Agent.Name:
		return cfg, fmt.Errorf("%w: agent: the pool's sandboxes are made for %q, not for %q", ErrConfig, own.Agent.Name, cfg.Agent.Name)
	}
	cfg.Sandbox, cfg.Runner, cfg.Pool = own.Sandbox, own.Runner, PoolConfig{}
	if env := cfg.Agent.Env; cfg.Agent.Name == "" {
		if cfg.Agent = own.Agent; env != nil {
			cfg.Agent.Env = env
		}
	}
	given, defaults := reflect.ValueOf(&cfg).Elem(), reflect.ValueOf(own)
	for i := range given.NumField() { // all, so that no field of NewPool is ignored
		if name := given.Type().Field(i).Name; name != "Pool" && given.Field(i).IsZero() {
			given.Field(i).Set(defaults.Field(i))
		}
	}
	if err := cfg.check(); err != nil || own.Agent.Name != "" {
		return cfg, err // NewPool has checked the pool's agent
	}
	return cfg, cfg.checkAgent(ctx)
}

// equal reports whether both would be the same in a file and have the same Provider. Functions
// and loggers of a registered Provider do not count: functions cannot be compared.
func (s Sandbox) equal(o Sandbox) bool {
	a, aerr := json.Marshal(s)
	b, berr := json.Marshal(o)
	return aerr == nil && berr == nil && bytes.Equal(a, b) && (registeredAs(s.of(s.Type), s.Type) || reflect.DeepEqual(s.Provider, o.Provider))
}

// take returns a live sandbox, and a function that makes the pool replace it.
func (p *Pool) take(ctx context.Context) (w primitives.EnvironmentPrimitive, refill func(), err error) {
	refill = func() { p.need <- struct{}{} } // there is room: one sandbox less is ready
	asking, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	for {
		if err := ctx.Err(); err != nil {
			return nil, nil, fmt.Errorf("create the sandbox: %w", context.Cause(ctx))
		}
		if p.isClosed() {
			return nil, nil, ErrClosed
		}
		select {
		case w := <-p.ready:
			if alive(asking, w) {
				return w, refill, nil
			}
			refill()
			p.discard(ctx, w)
		default:
			w, err := p.make(ctx)
			if err != nil {
				return nil, nil, fmt.Errorf("create the sandbox: %w", err)
			}
			return w, func() {}, nil
		}
	}
}

// alive asks the sandbox itself: one round trip, which is faster than asking its engine or
// provider.
func alive(ctx context.Context, w primitives.EnvironmentPrimitive) bool {
	info, err := w.Stat(ctx, w.Paths().Workspace)
	return err == nil && info.IsDir()
}

// discard ends an unusable sandbox in the background.
func (p *Pool) discard(ctx context.Context, w primitives.EnvironmentPrimitive) {
	p.mu.Lock()
	defer p.mu.Unlock()
	discard := func() {
		if err := end(ctx, w); err != nil {
			p.log.Debug("a sandbox of the pool that did not answer could not be ended", "sandbox", w.ID(), "error", err)
		}
	}
	if p.closed {
		discard()
		return
	}
	p.tasks.Go(discard)
}

func (p *Pool) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Close ends the sandboxes that are ready, and returns when they have ended. Environments that
// were created live on. Close may be called more than once.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	<-p.done
	return p.ended
}

// empty ends the sandboxes that are ready.
func (p *Pool) empty(ctx context.Context) error {
	var all sync.WaitGroup
	errs := make([]error, cap(p.ready))
	for i := range errs {
		select {
		case w := <-p.ready:
			all.Go(func() { errs[i] = end(ctx, w) })
		default:
		}
	}
	all.Wait()
	return errors.Join(errs...)
}
