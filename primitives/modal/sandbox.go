package modal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// Sandbox is a handle of a sandbox at Modal. It implements
// primitives.EnvironmentPrimitive and the optional interfaces beside it. Make one
// with [New] or [Attach].
type Sandbox struct {
	worker
	client  *client
	box     *sdk.Sandbox
	link    *link
	cfg     Config  // what it was made with
	program *runner // nil if it was attached to
	strange error   // why it is not known what it was made with

	terminating sync.Mutex
	closed      atomic.Bool
	closing     sync.Once
	closeErr    error
}

// worker does what is done inside the sandbox, whose life is the Sandbox's business.
type worker interface {
	primitives.EnvironmentPrimitive
	primitives.Runner
	primitives.BatchWriter
	primitives.Packer
	primitives.Unpacker
	primitives.Reattacher
	// Err says why nothing can be done any more; nil while it can.
	Err() error
}

var (
	_ worker                 = (*guest.Client)(nil)
	_ worker                 = (*Sandbox)(nil)
	_ primitives.Snapshotter = (*Sandbox)(nil)
	_ primitives.Forker      = (*Sandbox)(nil)
)

// begin connects to a new guest. If it cannot be run, again is tried once before.
func (s *Sandbox) begin(ctx context.Context, args []string, env map[string]string, again func(context.Context) error) error {
	l, err := dial(ctx, s.client, s.box, args, env, s.cfg)
	if err != nil && again != nil && ctx.Err() == nil {
		if aerr := again(ctx); aerr != nil {
			return errors.Join(err, aerr)
		}
		l, err = dial(ctx, s.client, s.box, args, env, s.cfg)
	}
	if err != nil {
		return err
	}
	s.link, s.worker = l, l.worker
	return nil
}

// settle does what is left to do for a new sandbox once its guest works.
func (s *Sandbox) settle(ctx context.Context, settings []byte, tags map[string]string) error {
	if err := s.writeRecord(ctx, settings); err != nil {
		return err
	}
	if err := awaitReady(ctx, s.box, s.cfg.Ready); err != nil {
		return err
	}
	if s.cfg.Keep {
		tags[tagKeep] = keepDone
		if err := s.box.SetTags(ctx, tags, nil); err != nil {
			return explain(err)
		}
	}
	return ctx.Err() // nobody may want it any more
}

// ID returns Modal's ID of the sandbox.
func (s *Sandbox) ID() string { return s.box.SandboxID }

// Capabilities returns what the sandbox can do.
func (s *Sandbox) Capabilities() primitives.Capabilities {
	c := s.worker.Capabilities()
	c.Snapshot = s.copyable() == nil
	c.Fork = c.Snapshot
	return c
}

// Poll asks Modal. A sandbox that has become too old or was idle for too long is
// [primitives.StatusExited].
func (s *Sandbox) Poll(ctx context.Context) (primitives.State, error) {
	err := s.Err()
	switch {
	case s.closed.Load():
		return primitives.State{}, wrap("poll", s.ID(), err)
	case errors.Is(err, primitives.ErrTerminated):
		return primitives.State{Status: primitives.StatusTerminated}, nil
	}
	result, rerr := s.client.result(ctx, s.ID())
	switch {
	case rerr != nil && ctx.Err() != nil:
		return primitives.State{}, wrap("poll", s.ID(), ctx.Err())
	case rerr != nil && (err != nil || isNotFound(rerr)):
		// Neither the guest nor Modal answers, or Modal does not know it.
		return primitives.State{Status: primitives.StatusLost}, nil
	case rerr != nil:
		return primitives.State{}, wrap("poll", s.ID(), explain(rerr))
	}
	state := fateOf(result).state
	if err != nil && state.Running() {
		// It lives, and this handle cannot use it any more.
		state.Status = primitives.StatusLost
	}
	return state, nil
}

// Terminate ends all processes politely, then the sandbox, and returns when Modal
// says that it has ended.
func (s *Sandbox) Terminate(ctx context.Context) (primitives.TerminateReport, error) {
	s.terminating.Lock() // a second call waits for the first
	defer s.terminating.Unlock()
	if s.link.isTerminated() && !s.closed.Load() {
		return primitives.TerminateReport{}, nil
	}
	report, err := s.endProcesses(ctx)
	if s.closed.Load() {
		return report, wrap("terminate", s.ID(), err)
	}
	// Whatever the guest says: Modal ends what it could not end.
	for _, p := range report.Survivors {
		p.Forced = true
		report.Killed = append(report.Killed, p)
	}
	report.Survivors = nil
	if err := endSandbox(ctx, s.box); err != nil {
		return report, wrap("terminate", s.ID(), err)
	}
	s.link.setTerminated()
	s.link.stream.abandon()
	return report, nil
}

// endProcesses has the guest end what runs.
func (s *Sandbox) endProcesses(ctx context.Context) (primitives.TerminateReport, error) {
	if err := s.Err(); err != nil {
		return primitives.TerminateReport{}, err
	}
	return s.worker.Terminate(ctx)
}

// endTimeout is how long Modal may take to end a sandbox.
const endTimeout = time.Minute

// endSandbox ends a sandbox and waits for that, also when ctx is done. It is no error
// if it has ended.
func endSandbox(ctx context.Context, box *sdk.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_, err := box.Terminate(ctx, &sdk.SandboxTerminateParams{Wait: true})
	if isNotFound(err) {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: Modal does not say that the sandbox has ended", primitives.ErrUnavailable)
	}
	return explain(err)
}

// URLs returns where the ports of [Config].Ports can be reached from the internet.
func (s *Sandbox) URLs(ctx context.Context) (map[int]string, error) {
	if err := s.Err(); err != nil {
		return nil, wrap("urls", s.ID(), err)
	}
	tunnels, err := s.box.Tunnels(ctx, urlsTimeout, nil)
	if err != nil {
		return nil, wrap("urls", s.ID(), explain(err))
	}
	urls := make(map[int]string, len(tunnels))
	for port, t := range tunnels {
		urls[port] = t.URL()
	}
	return urls, nil
}

// urlsTimeout is how long Modal may take to open tunnels.
const urlsTimeout = 50 * time.Second

// Close closes the stream to the guest. The sandbox lives on for a while, see
// [Config].
func (s *Sandbox) Close() error {
	s.closing.Do(func() {
		s.closed.Store(true)
		s.closeErr = errors.Join(s.letGo(), s.box.Detach())
		s.client.Close()
	})
	return wrap("close", s.ID(), s.closeErr)
}

// letGo ends what this handle does in the sandbox.
func (s *Sandbox) letGo() error {
	err := s.worker.Close()
	s.link.stream.join(sendTimeout)
	return err
}
