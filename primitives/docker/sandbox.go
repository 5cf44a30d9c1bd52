package docker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// Sandbox is a handle of a container. It implements
// primitives.EnvironmentPrimitive and the optional interfaces beside it. Make one
// with [New] or [Attach].
type Sandbox struct {
	worker
	eng  *client.Client
	id   string
	link *link
	cfg  Config // what it was made with
	// forkedFrom is the image that is to go with the last sandbox made of it;
	// empty if there is none.
	forkedFrom string
	volumes    []string // the paths of those that the image asked for, see copyable

	freezing sync.Mutex
	paused   atomic.Bool               // by this handle
	frozen   atomic.Pointer[time.Time] // when this handle has paused or resumed it; nil: never

	sweep       *sweep // what New has started; nil for none
	terminating sync.Mutex
	closed      atomic.Bool
	closing     sync.Once
	closeErr    error
}

// worker is what the guest's client does for the users of a Sandbox. The life of the
// container is the Sandbox's business.
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
	_ worker = (*guest.Client)(nil)
	_ worker = (*Sandbox)(nil)
)

// ID returns the container's name.
func (s *Sandbox) ID() string { return s.id }

// Capabilities returns what the sandbox can do.
func (s *Sandbox) Capabilities() primitives.Capabilities {
	c := s.worker.Capabilities()
	if s.link.arch != "" {
		c.Arch = s.link.arch // the guest knows its own
	}
	c.Snapshot = s.copyable() == nil
	c.Fork, c.Pause, c.Usage = c.Snapshot, true, true
	return c
}

// Poll asks the engine. A container that has ended is
// [primitives.StatusExited] with the status of its first process, as long as the
// engine knows it, else [primitives.StatusLost].
func (s *Sandbox) Poll(ctx context.Context) (primitives.State, error) {
	err := s.Err()
	switch {
	case s.closed.Load():
		return primitives.State{}, wrap("poll", s.id, err)
	case errors.Is(err, primitives.ErrTerminated):
		return primitives.State{Status: primitives.StatusTerminated}, nil
	}
	state, ferr := s.state(ctx)
	if ferr != nil && err != nil && ctx.Err() == nil {
		// Neither the guest nor the engine answers.
		return primitives.State{Status: primitives.StatusLost}, nil
	}
	if ferr == nil && err != nil && state.Running() {
		// It lives, and this handle cannot use it any more.
		state.Status = primitives.StatusLost
	}
	return state, wrap("poll", s.id, ferr)
}

// Terminate ends all processes politely, then removes the container.
func (s *Sandbox) Terminate(ctx context.Context) (primitives.TerminateReport, error) {
	s.terminating.Lock() // a second call waits for the first
	defer s.terminating.Unlock()
	wait := func() {}
	began := time.Now()
	stop := s.thaw(ctx)
	marked := s.Err() == nil
	if marked {
		wait = s.mark(ctx)
	}
	waitEnd := s.awaitOwnEnd(ctx)
	report, err := s.endProcesses(ctx)
	stop()
	wait()
	if marked && time.Since(began) > markLasts {
		markEnd(ctx, s.eng, s.link.container)
	}
	closed := s.closed.Load()
	waitEnd(err == nil && !closed && s.hangUp())
	if closed {
		return report, wrap("terminate", s.id, err)
	}
	// Whatever the guest says: the kernel ends what it could not end.
	for _, p := range report.Survivors {
		p.Forced = true
		report.Killed = append(report.Killed, p)
	}
	report.Survivors = nil
	err = errors.Join(removeContainer(ctx, s.eng, s.link.container), dropLink(s.eng, s.id))
	if err == nil {
		s.link.setTerminated()
		err = s.dropForkImage(ctx)
	}
	return report, wrap("terminate", s.id, err)
}

// Close closes the streams into the container. The container lives on for its grace, see
// [Config].
func (s *Sandbox) Close() error {
	s.closing.Do(func() {
		s.closed.Store(true)
		s.sweep.stop()
		s.closeErr = errors.Join(s.worker.Close(), leave(s.eng))
	})
	return wrap("close", s.id, s.closeErr)
}
