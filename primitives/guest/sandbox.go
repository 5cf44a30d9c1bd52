package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/ended"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Driver is a backend's part of one sandbox, which the guest cannot provide: it connects to the
// guest, reports the state of the sandbox and ends it. [Open] makes a [Sandbox] from it.
// Methods may be called from several goroutines at once.
//
// A driver may also implement [Ender], [Refiner], [Copier], [primitives.Snapshotter],
// [primitives.Pauser], [primitives.UsageReader], [primitives.PortLister] and
// [primitives.RunnerHolder]. The Sandbox calls these only while the sandbox is neither closed nor
// terminated, and adds to their errors where they come from.
type Driver interface {
	// ID returns the sandbox's ID.
	ID() string
	// Dial starts the guest, or another guest beside it, and returns its byte stream. Closing
	// the stream must unblock its readers and writers. If the stream has a method Stderr()
	// string, a failed handshake quotes its result.
	Dial(ctx context.Context) (io.ReadWriteCloser, error)
	// State asks the backend for the state of the sandbox.
	State(ctx context.Context) (Status, error)
	// End ends the sandbox and returns when it is gone, even if ctx is done. If the sandbox has
	// already ended, End returns nil. The guest has ended the processes before, if it could.
	End(ctx context.Context) error
	// Close releases what the driver holds. The sandbox lives on.
	Close() error
}

// Status is the state of a sandbox as its backend sees it.
type Status struct {
	primitives.State
	// Cause says why a sandbox that does not run has ended: an error that wraps
	// primitives.ErrUnavailable, and os.ErrProcessDone if nothing runs in it any more. Nil
	// means that the state says everything.
	Cause error
}

// Ender is implemented by drivers that do a part of [Driver].End while the guest ends
// the processes.
type Ender interface {
	// BeginEnd starts that part, even if ctx is done. The returned function is called once,
	// before End. It may call hangUp, which reports whether the guest has nothing left to do
	// and therefore exits by itself now.
	BeginEnd(ctx context.Context) (finish func(hangUp func() bool))
}

// Refiner is implemented by drivers whose methods do not determine all capabilities of the
// sandbox.
type Refiner interface {
	// Refine returns the actual capabilities. c holds those that the Sandbox derived.
	Refine(c primitives.Capabilities) primitives.Capabilities
}

// Copier is implemented by drivers whose sandboxes can be copied: the Sandbox implements
// primitives.Forker with it.
type Copier interface {
	// Freeze saves the current files of the sandbox for copies.
	Freeze(ctx context.Context) (Frozen, error)
}

// Frozen is the saved files of a sandbox, for copies.
type Frozen interface {
	// Copy creates one sandbox. Several calls may run at once.
	Copy(ctx context.Context) (*Sandbox, error)
	// Drop removes the saved files if there is no copy, even if ctx is done.
	Drop(ctx context.Context) error
}

// ID returns the sandbox's ID.
func (c *Sandbox) ID() string {
	if c.driver != nil {
		return c.driver.ID()
	}
	return c.hello.ID
}

// Driver returns the driver given to Open, for functions that a backend only has for its own
// sandboxes. It is nil if there is only a stream.
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

// Poll asks the backend. A sandbox that has ended is [primitives.StatusExited] with the status
// of its first process while the backend knows that status, else [primitives.StatusLost]. A
// sandbox that lives but is lost to this handle is StatusLost, too.
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
	// stateTimeout is how long the backend may take to report the state of a sandbox.
	stateTimeout = 5 * time.Second
	// causeAttempts is how often to ask the backend: the stream may end before the backend
	// notices the end of the sandbox. The pause between the attempts doubles, because each
	// attempt may need a connection.
	causeAttempts = 6
	causePause    = 50 * time.Millisecond
)

// endCause returns why the stream has ended by itself. Only the first call asks the backend, or each
// one while the sandbox is paused.
func (c *Sandbox) endCause() error {
	c.causing.Lock()
	defer c.causing.Unlock()
	switch {
	case c.cause != nil && c.cause != errPausedAway: //nolint:errorlint // identity: it is only set here
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

// errPausedAway is the error of a handle whose sandbox another handle has paused.
var errPausedAway = fmt.Errorf("%w: the sandbox is paused, and the connection to the guest was given up; attach to it again, which resumes it", primitives.ErrUnavailable)

// errEndedAway is the error of a sandbox in which nothing runs any more.
var errEndedAway = ended.Because(fmt.Errorf("%w: the sandbox has ended", primitives.ErrUnavailable))

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

// Terminate ends all processes with a grace period, then the sandbox, and returns when it is
// gone. It first resumes a paused sandbox. A second call, and Close, wait for the first.
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
		// Frozen processes cannot handle SIGTERM. If resuming fails, they end with the sandbox.
		_ = c.pause(context.WithoutCancel(ctx), false)
	}
	finish := func(func() bool) {}
	if d, ok := c.driver.(Ender); ok {
		finish = d.BeginEnd(ctx)
	}
	report, err := c.endProcesses(ctx)
	finish(func() bool { return err == nil && c.hangUp() })
	// Whatever the guest reports: the end of the sandbox also ends the survivors.
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

// answerInterval is how often endProcesses checks that the guest answers.
const answerInterval = 2 * time.Second

// endProcesses asks the guest to end all processes with a grace period. If the guest does not
// answer, it cuts the stream instead of waiting.
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

// usable returns why even the backend cannot use the sandbox, or nil. A sandbox whose guest no
// longer answers can still be paused and copied.
func (c *Sandbox) usable(ctx context.Context) error {
	err := c.Err()
	if c.isClosed() || errors.Is(err, primitives.ErrTerminated) {
		return err
	}
	return ctx.Err()
}

// wrap adds to an error where it came from. It returns nil for nil.
func (c *Sandbox) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return c.fail(op, c.ID(), err)
}

// stderrOf returns the standard error of the other end of a stream, if it is known.
func stderrOf(rw io.ReadWriteCloser) string {
	if s, ok := rw.(interface{ Stderr() string }); ok {
		return s.Stderr()
	}
	return ""
}

// Snapshot implements primitives.Snapshotter, if the driver does.
func (c *Sandbox) Snapshot(ctx context.Context) (string, error) {
	d, ok := c.driver.(primitives.Snapshotter)
	if !ok {
		return "", c.wrap("snapshot", errors.ErrUnsupported)
	}
	if err := c.usable(ctx); err != nil {
		return "", c.wrap("snapshot", err)
	}
	defer c.suspendKeepAlive()()
	id, err := d.Snapshot(ctx)
	return id, c.wrap("snapshot", err)
}

// Pause implements primitives.Pauser, if the driver does.
func (c *Sandbox) Pause(ctx context.Context) error {
	return c.wrap("pause", c.pause(ctx, true))
}

// Resume implements primitives.Pauser, if the driver does. It also resumes a sandbox
// that another handle has paused.
func (c *Sandbox) Resume(ctx context.Context) error {
	return c.wrap("resume", c.pause(ctx, false))
}

func (c *Sandbox) pause(ctx context.Context, paused bool) error {
	d, ok := c.driver.(primitives.Pauser)
	if !ok {
		return errors.ErrUnsupported
	}
	c.pausing.Lock()
	defer c.pausing.Unlock()
	if err := c.usable(ctx); err != nil {
		return err
	}
	before, do := c.isPaused(), d.Resume
	if paused {
		do = d.Pause
		c.setPaused(true) // before the guest stops answering
	}
	if err := do(ctx); err != nil {
		c.setPaused(before)
		return err
	}
	c.setPaused(paused)
	return nil
}

// ReadUsage implements primitives.UsageReader, if the driver does. The backend answers, so it
// works whatever happens in the sandbox.
func (c *Sandbox) ReadUsage(ctx context.Context) (primitives.Usage, error) {
	d, ok := c.driver.(primitives.UsageReader)
	if !ok {
		return primitives.Usage{}, c.wrap("usage", errors.ErrUnsupported)
	}
	if err := c.usable(ctx); err != nil {
		return primitives.Usage{}, c.wrap("usage", err)
	}
	u, err := d.ReadUsage(ctx)
	return u, c.wrap("usage", err)
}

// Ports implements primitives.PortLister, if the driver does.
func (c *Sandbox) Ports(ctx context.Context) ([]primitives.Port, error) {
	d, ok := c.driver.(primitives.PortLister)
	if !ok {
		return nil, c.wrap("ports", errors.ErrUnsupported)
	}
	if err := c.usable(ctx); err != nil {
		return nil, c.wrap("ports", err)
	}
	ports, err := d.Ports(ctx)
	return ports, c.wrap("ports", err)
}

// copiesAtOnce limits how many sandboxes are created at the same time.
const copiesAtOnce = 8

// Fork implements primitives.Forker, if the driver is a [Copier].
func (c *Sandbox) Fork(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	copies, err := c.fork(ctx, n)
	if err != nil {
		return nil, c.wrap("fork", err)
	}
	return copies, nil
}

func (c *Sandbox) fork(ctx context.Context, n int) ([]primitives.EnvironmentPrimitive, error) {
	d, ok := c.driver.(Copier)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, fmt.Errorf("%w: %d copies; ask for at least one", fs.ErrInvalid, n)
	}
	wake := c.suspendKeepAlive()
	frozen, err := d.Freeze(ctx)
	wake()
	if err != nil {
		return nil, err
	}
	copies, err := makeCopies(ctx, n, frozen)
	if err == nil {
		return copies, nil
	}
	errs := []error{err}
	for _, c := range copies {
		if c != nil {
			_, err := c.Terminate(context.WithoutCancel(ctx))
			errs = append(errs, err, c.Close())
		}
	}
	return nil, errors.Join(append(errs, frozen.Drop(ctx))...)
}

// makeCopies creates n copies. If one fails, it cancels the others and also returns those that
// exist.
func makeCopies(ctx context.Context, n int, frozen Frozen) ([]primitives.EnvironmentPrimitive, error) {
	work, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	copies := make([]primitives.EnvironmentPrimitive, n)
	turn := make(chan struct{}, copiesAtOnce)
	var all sync.WaitGroup
	for i := range copies {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			c, err := frozen.Copy(work)
			if err != nil {
				giveUp(err) // the first cause counts
				return
			}
			copies[i] = c
		})
	}
	all.Wait()
	return copies, context.Cause(work)
}

// RunnerPath implements primitives.RunnerHolder. It is empty if the driver does not implement it.
func (c *Sandbox) RunnerPath(file string) string {
	if d, ok := c.driver.(primitives.RunnerHolder); ok {
		return d.RunnerPath(file)
	}
	return ""
}
