package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// ID returns the sandbox's ID.
func (c *Sandbox) ID() string {
	if c.driver != nil {
		return c.driver.ID()
	}
	return c.hello.ID
}

// Driver returns what Open was given, for functions of a backend that only its own
// sandboxes have. It is nil if there is only a stream.
func (c *Sandbox) Driver() Driver { return c.driver }

// Capabilities returns what the sandbox can do.
func (c *Sandbox) Capabilities() primitives.Capabilities {
	can := c.hello.Capabilities
	_, can.Snapshot = c.driver.(primitives.Snapshotter)
	_, can.Fork = c.driver.(Copier)
	_, can.Pause = c.driver.(primitives.Pauser)
	_, can.Usage = c.driver.(primitives.UsageReader)
	can.Isolation = c.cfg.Isolation
	if d, ok := c.driver.(Refiner); ok {
		return d.Refine(can)
	}
	return can
}

// Poll asks the backend. A sandbox that has ended is [primitives.StatusExited] with the
// status of its first process, as long as the backend knows it, else
// [primitives.StatusLost]. One that lives, but not for this handle any more, is
// StatusLost, too.
func (c *Sandbox) Poll(ctx context.Context) (primitives.State, error) {
	err := c.Err()
	switch {
	case c.isClosed():
		return primitives.State{}, c.wrap("poll", err)
	case errors.Is(err, primitives.ErrTerminated):
		return primitives.State{Status: primitives.StatusTerminated}, nil
	case c.driver == nil && err != nil:
		return primitives.State{Status: primitives.StatusLost}, nil
	case c.driver == nil:
		return c.pollGuest(ctx)
	}
	status, serr := c.driver.State(ctx)
	switch {
	case serr != nil && ctx.Err() != nil:
		return primitives.State{}, c.wrap("poll", ctx.Err())
	case serr != nil && err != nil: // neither the guest nor the backend answers
		return primitives.State{Status: primitives.StatusLost}, nil
	case serr == nil && err != nil && status.Running():
		status.Status = primitives.StatusLost
	}
	return status.State, c.wrap("poll", serr)
}

const (
	// stateTimeout is how long the backend may take to tell the state of a sandbox.
	stateTimeout = 5 * time.Second
	// The stream may end before the backend notices the end of the sandbox. It is asked
	// again after a pause, which doubles, because each question may be a connection.
	causeAttempts = 6
	causePause    = 50 * time.Millisecond
)

// endCause returns why the stream has ended by itself. It asks the backend once.
func (c *Sandbox) endCause() error {
	c.causing.Lock()
	defer c.causing.Unlock()
	switch {
	case c.cause != nil:
	case c.driver == nil:
		c.cause = fmt.Errorf("%w: the guest's stream ended", primitives.ErrUnavailable)
	default:
		c.cause = c.findCause()
	}
	return c.cause
}

func (c *Sandbox) findCause() error {
	for attempt := range causeAttempts {
		status, err := c.state()
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", primitives.ErrUnavailable, err)
		case status.Status == primitives.StatusTerminated:
			return primitives.ErrTerminated
		case status.Status == primitives.StatusPaused:
			return errPausedAway
		case !status.Running():
			return status.EndCause()
		}
		<-time.After(causePause << attempt)
	}
	return fmt.Errorf("%w: the connection to the guest broke; attach to the sandbox again", primitives.ErrUnavailable)
}

// errPausedAway is for a handle whose sandbox was paused by another one.
var errPausedAway = fmt.Errorf("%w: the sandbox is paused, and the connection to the guest was given up; attach to it again, which resumes it", primitives.ErrUnavailable)

// errEndedAway says that nothing runs any more.
var errEndedAway = fmt.Errorf("%w: the sandbox has ended: %w", primitives.ErrUnavailable, os.ErrProcessDone)

// EndCause returns why calls fail; nil while the sandbox runs or is paused.
func (s Status) EndCause() error {
	switch {
	case s.Running(), s.Status == primitives.StatusPaused:
		return nil
	case s.Status == primitives.StatusTerminated:
		return primitives.ErrTerminated
	case s.Cause != nil:
		return s.Cause
	}
	return errEndedAway
}

// Terminate ends all processes politely, then the sandbox, and returns when it is gone.
// A paused sandbox is resumed for that. A second call, and Close, wait for the first.
func (c *Sandbox) Terminate(ctx context.Context) (primitives.TerminateReport, error) {
	if c.driver == nil {
		return c.terminateGuest(ctx)
	}
	c.terminating.Lock()
	defer c.terminating.Unlock()
	switch {
	case c.isClosed(): // Close waits for a Terminate that has begun
		return primitives.TerminateReport{}, c.wrap("terminate", errWasClosed)
	case c.ended:
		return primitives.TerminateReport{}, nil
	}
	if c.isPaused() {
		// Frozen processes do not end politely. If this fails, they end with the sandbox.
		_ = c.pause(context.WithoutCancel(ctx), false)
	}
	finish := func(func() bool) {}
	if d, ok := c.driver.(Ender); ok {
		finish = d.BeginEnd(ctx)
	}
	report, err := c.endProcesses(ctx)
	finish(func() bool { return err == nil && c.hangUp() })
	// Whatever the guest says: the end of the sandbox ends what the guest could not end.
	for _, p := range report.Survivors {
		p.Forced = true
		report.Killed = append(report.Killed, p)
	}
	report.Survivors = nil
	if err := c.driver.End(ctx); err != nil {
		return report, c.wrap("terminate", err)
	}
	c.setTerminated()
	c.ended = true
	return report, nil
}

// answerInterval is how often a guest that ends processes is asked whether it answers.
const answerInterval = 2 * time.Second

// endProcesses asks the guest to end all processes politely. It does not wait for one
// that does not answer: it cuts the stream.
func (c *Sandbox) endProcesses(ctx context.Context) (primitives.TerminateReport, error) {
	watched, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(answerInterval)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
			}
			asked, stop := context.WithTimeout(watched, stateTimeout)
			_, _ = c.pollGuest(asked) // an error is an answer, too
			silent := asked.Err() != nil && watched.Err() == nil
			stop()
			if silent {
				c.cut()
				return
			}
		}
	})
	report, err := c.terminateGuest(ctx)
	cancel()
	watching.Wait()
	return report, err
}

// cut ends the stream to a silent guest at once.
func (c *Sandbox) cut() {
	c.causing.Lock()
	if c.cause == nil {
		c.cause = fmt.Errorf("%w: the guest does not answer", primitives.ErrUnavailable)
	}
	c.causing.Unlock()
	_ = c.mux.Close() // it has failed already
}

// usable returns why not even the backend can do anything with the sandbox, or nil: a
// sandbox whose guest does not answer any more still can be paused and copied.
func (c *Sandbox) usable(ctx context.Context) error {
	err := c.Err()
	if c.isClosed() || errors.Is(err, primitives.ErrTerminated) {
		return err
	}
	return ctx.Err()
}

// wrap says where an error came from.
func (c *Sandbox) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return c.fail(op, c.ID(), err)
}

// stderrOf returns what the other end of a stream has written on standard error.
func stderrOf(rw io.ReadWriteCloser) string {
	if s, ok := rw.(interface{ Stderr() string }); ok {
		return s.Stderr()
	}
	return ""
}
