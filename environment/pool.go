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

// PoolConfig says how many sandboxes a [Pool] has. The zero value is no pool.
type PoolConfig struct {
	// Size is how many sandboxes the pool keeps ready; zero is none.
	Size int `json:"size,omitempty"`
	// Max is how many environments of the pool may be open at once: [Pool.Create] waits
	// until one is closed. Zero means no limit.
	Max int `json:"max,omitempty"`
}

// check refuses what makes no sense.
func (c PoolConfig) check() error {
	if c.Size < 0 || c.Max < 0 {
		return fmt.Errorf("%w: pool: its size and max are positive numbers; leave out pool for none", ErrConfig)
	}
	return nil
}

// Pool keeps sandboxes ready, so that an environment does not have to wait for its
// own to be made: taking one is a single round trip. Sandboxes are used once.
// Whatever the pool takes out is replaced in the background. Its methods may be
// called from several goroutines at once.
//
// [Pool.Create] has the form that session.Config.Create takes.
type Pool struct {
	cfg  Config
	make func(context.Context) (primitives.EnvironmentPrimitive, error) // makes a sandbox
	log  hclog.Logger
	// patience is how long to wait after a sandbox could not be made; it doubles
	// up to maxPatience.
	patience time.Duration

	open  chan struct{}                        // a token for each environment that is open; nil for no limit
	ready chan primitives.EnvironmentPrimitive // has room for all
	need  chan struct{}                        // a token for each that is missing

	mu     sync.Mutex // guards closed, and that no task is added after it
	closed bool
	stop   context.CancelFunc
	// closing is closed when Close has begun.
	closing <-chan struct{}
	tasks   sync.WaitGroup
	done    chan struct{} // closed when nothing waits any more, and ended is known
	ended   error
}

const (
	// poolWorkers is how many sandboxes are made at the same time.
	poolWorkers = 2
	minPatience = time.Second
	maxPatience = time.Minute
	// aliveTimeout is how long the sandboxes may take, one after the other, to show that
	// one of them lives before they are given up for a new one.
	aliveTimeout = 5 * time.Second
)

// NewPool starts to make cfg.Pool.Size sandboxes and returns at once. Of cfg count
// the settings of the sandbox: Sandbox, Runner, Logger, and the name of the Agent,
// which the sandboxes are made for; without one [Pool.Create] chooses. The others are for environments that leave them out,
// see [Pool.Create]. Keep is refused: what waits in a pool goes with
// its program. The caller must Close the pool. ctx gives values only.
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
	case cfg.Sandbox.Keep:
		return nil, fmt.Errorf("%w: sandbox.keep: what waits in a pool ends with its program; leave it out", ErrConfig)
	case cfg.Sandbox.Name != "":
		return nil, fmt.Errorf("%w: sandbox.name: the sandboxes of a pool cannot share a name; leave it out", ErrConfig)
	}
	cfg = cfg.withQuietLogger()
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

// fill makes sandboxes as they are needed until ctx is done.
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

// Ready returns how many sandboxes wait at the moment.
func (p *Pool) Ready() int { return len(p.ready) }

// Create is [Create] with a sandbox of the pool. It waits while Config.Pool.Max
// environments are open; copies by [Environment.Fork] do not count. A sandbox that has
// died while it waited is never handed out. When none is ready it makes one, and its
// errors are those of Create.
//
// Of cfg count what belongs to the conversation: Workspace, Agent, SessionID
// and the like. Sandbox, Pool and Runner are the pool's; each must be left out or be
// the same (functions and loggers in it do not count), and so must the name of the Agent if the pool has one. An Agent without a
// name, a Logger and an OnPermission that are nil are the pool's. Otherwise, with
// Keep, and after Close, nothing is made: [ErrConfig], [ErrClosed].
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
	if err != nil {
		leave()
		return nil, err
	}
	defer refill() // only now: to make a sandbox slows down who waits for one
	release := func() error {
		defer leave()
		return end(ctx, w)
	}
	e, err := prepare(ctx, w, cfg, owner{release: release})
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return e, nil
}

// enter waits until one more environment may be open. The caller calls leave when that
// has ended.
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

// adjust fills in what is the pool's, and refuses what contradicts it.
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
	if cfg.Logger == nil {
		cfg.Logger = own.Logger
	}
	if cfg.OnPermission == nil {
		cfg.OnPermission, cfg.PermissionTimeout = own.OnPermission, own.PermissionTimeout
	}
	if err := cfg.check(); err != nil || own.Agent.Name != "" {
		return cfg, err // NewPool has checked its agent
	}
	return cfg, cfg.checkAgent(ctx)
}

// equal reports whether a file would say the same of both, and they have the same Provider.
// The functions and loggers of blocks do not count: functions cannot be compared.
func (s Sandbox) equal(o Sandbox) bool {
	a, aerr := json.Marshal(s)
	b, berr := json.Marshal(o)
	return aerr == nil && berr == nil && bytes.Equal(a, b) && reflect.DeepEqual(s.Provider, o.Provider)
}

// take returns a sandbox that lives, and what has the pool make another one for it.
func (p *Pool) take(ctx context.Context) (w primitives.EnvironmentPrimitive, refill func(), err error) {
	refill = func() { p.need <- struct{}{} } // there is room: one less waits
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

// alive asks the sandbox itself: one round trip, which takes less time than asking its
// engine or provider.
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

// Close ends the sandboxes that wait, and returns when that is done. Environments
// that were made live on. It may be called more than once.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	<-p.done
	return p.ended
}

// empty ends what waits.
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
