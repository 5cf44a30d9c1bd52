package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Config configures the host's end. The zero value works.
type Config struct {
	// Backend is the kind of the sandbox in errors ("docker"). Empty keeps the name that the
	// guest reports.
	Backend string
	// Logger logs the events of the stream. Nil disables logging.
	Logger hclog.Logger
	// HandshakeTimeout bounds the handshake; zero means
	// DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// KeepAlive is the interval of keep-alive pings, and how long the guest may take to answer
	// one: a guest that is stopped for longer is lost. Zero means 30 seconds. Negative disables
	// the pings; then only the end of the stream is noticed.
	KeepAlive time.Duration
	// Isolation is the isolation that the backend provides, whatever the guest reports.
	Isolation primitives.Isolation
	// Socket, if not nil, is a socket that the guest may move to after the handshake. If the
	// guest cannot, it stays on the stream.
	Socket *Socket
	// Kept makes Open wait until the guest has received the host's hello, which takes one round
	// trip. Without that, the guest would end a kept sandbox if the host died first.
	Kept bool
}

// Sandbox is a sandbox that a guest serves. It implements primitives.EnvironmentPrimitive and
// its optional interfaces. Create one with [Open], or with [Dial] if there is only a stream. It
// may be used by several goroutines at once.
type Sandbox struct {
	cfg    Config
	driver Driver                 // nil if only the stream is known
	state  func() (Status, error) // asks the driver, even after the context of Open is done
	log    hclog.Logger
	mux    *session
	hello  hello
	tokens atomic.Uint64

	mu          sync.Mutex
	closed      bool
	terminated  bool
	paused      bool
	grace       time.Duration // the longest grace period of the commands
	causing     sync.Mutex
	cause       error // why the stream has ended; guarded by causing
	pausing     sync.Mutex
	terminating sync.Mutex
	ended       bool // the driver has ended the sandbox; guarded by terminating
	uploads     map[*call]struct{}
	leaving     bool // Close has begun
	closing     sync.Once
	closeErr    error
	conns       chan struct{} // holds one element for each connection
	watcher     sync.WaitGroup
	done        chan struct{}
}

var (
	_ primitives.EnvironmentPrimitive = (*Sandbox)(nil)
	_ primitives.Runner               = (*Sandbox)(nil)
	_ primitives.BatchWriter          = (*Sandbox)(nil)
	_ primitives.Packer               = (*Sandbox)(nil)
	_ primitives.Unpacker             = (*Sandbox)(nil)
	_ primitives.Reattacher           = (*Sandbox)(nil)
	_ primitives.Snapshotter          = (*Sandbox)(nil)
	_ primitives.Forker               = (*Sandbox)(nil)
	_ primitives.Pauser               = (*Sandbox)(nil)
	_ primitives.UsageReader          = (*Sandbox)(nil)
	_ primitives.PortLister           = (*Sandbox)(nil)
	_ primitives.Forwarder            = (*Sandbox)(nil)
)

// Open connects to the guest of the driver's sandbox. ctx covers only that. If Open fails, it
// has closed the stream but not the driver. It returns the errors of [Driver].Dial, and a
// [*HandshakeError].
func Open(ctx context.Context, driver Driver, cfg Config) (*Sandbox, error) {
	rw, err := driver.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return open(ctx, rw, driver, cfg)
}

// Dial performs the handshake with the guest at the other end of rw. The Sandbox then owns rw.
// Dial closes rw if it fails, and if the guest has moved to cfg.Socket, which happens before
// Dial returns. Closing rw must unblock its readers and writers. ctx covers only the handshake.
//
// The Sandbox only knows its stream: Terminate does not end the sandbox itself, and Poll
// returns [primitives.StatusLost] when the stream has ended. See [Open].
//
// A failed handshake returns a [*HandshakeError].
func Dial(ctx context.Context, rw io.ReadWriteCloser, cfg Config) (*Sandbox, error) {
	return open(ctx, rw, nil, cfg)
}

func open(ctx context.Context, rw io.ReadWriteCloser, driver Driver, cfg Config) (*Sandbox, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	agreed, err := greet(ctx, rw, cfg)
	if err != nil {
		if failed, ok := errors.AsType[*HandshakeError](err); ok {
			failed.Stderr = stderrOf(rw)
		}
		return nil, &primitives.Error{Op: "dial", Backend: cfg.Backend, Err: err}
	}
	cfg.Logger.Debug("connected to the guest", "socket", agreed.rw != rw, "pipes", agreed.pipes != nil, "stays_because", agreed.why)
	cfg.Socket = nil // it is closed already
	c, err := newSandbox(agreed, driver, cfg)
	if err != nil {
		return nil, &primitives.Error{Op: "dial", Backend: cfg.Backend, Err: err}
	}
	outlives := context.WithoutCancel(ctx)
	c.state = func() (Status, error) {
		ctx, cancel := context.WithTimeout(outlives, stateTimeout)
		defer cancel()
		return driver.State(ctx)
	}
	if cfg.Kept {
		if err := c.ask(ctx, "dial", "", opPoll, &empty{}, &stateReply{}); err != nil {
			_ = c.mux.Close()
			<-c.done
			return nil, err
		}
	}
	return c, nil
}

// newSandbox returns a Sandbox for the result of a handshake.
func newSandbox(agreed *handshakeResult, driver Driver, cfg Config) (*Sandbox, error) {
	log := cfg.Logger
	mux, err := newSession(agreed, true, cfg.KeepAlive, log)
	if err != nil {
		return nil, errors.Join(err, agreed.rw.Close())
	}
	c := &Sandbox{cfg: cfg, driver: driver, log: log, mux: mux, hello: agreed.theirs, done: make(chan struct{}), conns: make(chan struct{}, maxConns), uploads: make(map[*call]struct{})}
	mux.whenEnded(func() {
		c.watcher.Go(func() {
			<-mux.CloseChan()
			// Close returns when yamux's goroutines have noticed the end, too.
			_ = mux.Close()
			if c.isClosing() {
				log.Debug("connection to the guest closed")
			} else {
				log.Warn("connection to the guest lost")
			}
			close(c.done)
		})
	})
	return c, nil
}

// greet performs the handshake and offers the guest the socket if there is one.
func greet(ctx context.Context, rw io.ReadWriteCloser, cfg Config) (*handshakeResult, error) {
	if cfg.Socket == nil {
		return handshake(ctx, rw, &hello{}, true, cfg.HandshakeTimeout, stay)
	}
	r := cfg.Socket.open()
	a, err := handshake(ctx, rw, &hello{Offer: &r.offer}, true, cfg.HandshakeTimeout, r.settle)
	if conn := r.close(); err != nil && conn != nil {
		_ = conn.Close()
	}
	return a, err
}

// Paths returns the folders of the sandbox.
func (c *Sandbox) Paths() primitives.Paths { return c.hello.Paths }

// Done is closed when the stream has ended, by Close or by itself. After that
// every call fails with what Err returns.
func (c *Sandbox) Done() <-chan struct{} { return c.done }

// Err returns why calls fail: nil while the stream works, primitives.ErrTerminated once the
// sandbox was terminated, and primitives.ErrUnavailable when the stream broke or the Sandbox
// was closed.
func (c *Sandbox) Err() error {
	ended := c.mux.hasEnded() // read this first: Close sets closed before it ends the session
	c.mu.Lock()
	closed, terminated := c.closed, c.terminated
	c.mu.Unlock()
	switch {
	case closed:
		return errWasClosed
	case terminated:
		return primitives.ErrTerminated
	case !ended:
		return nil
	}
	return c.endCause()
}

// setPaused marks the sandbox as paused or running. While it is paused, keep-alive rests, new
// operations return primitives.ErrUnavailable, and Close does not wait for the guest.
// Operations in progress wait.
func (c *Sandbox) setPaused(paused bool) {
	c.mu.Lock()
	c.paused = paused
	c.mu.Unlock()
	c.mux.alive.setSuspended(paused)
}

// suspendKeepAlive stops keep-alive while the backend freezes the sandbox for a moment, during which calls
// wait. The returned function starts it again.
func (c *Sandbox) suspendKeepAlive() (wake func()) {
	c.mux.alive.setSuspended(true)
	return func() { c.mux.alive.setSuspended(c.isPaused()) }
}

func (c *Sandbox) isPaused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused
}

// errPaused is the error of calls while the sandbox is paused.
var errPaused = fmt.Errorf("%w: it is paused; resume it", primitives.ErrUnavailable)

// broken returns the caller's error for a failure of the stream itself.
func (c *Sandbox) broken(cause error) error {
	if errors.Is(cause, primitives.ErrUnavailable) || errors.Is(cause, primitives.ErrTerminated) {
		return cause
	}
	if err := c.Err(); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", primitives.ErrUnavailable, cause)
}

// fail adds to err where it happened.
func (c *Sandbox) fail(op, target string, err error) error {
	if _, ok := errors.AsType[*primitives.Error](err); ok {
		return err
	}
	return &primitives.Error{Op: op, Backend: c.cfg.Backend, Target: target, Err: err}
}

// remote rebuilds an error that the guest reported.
func (c *Sandbox) remote(w *wireError) error {
	err := fromWire(w, c.cfg.Backend)
	if errors.Is(err, primitives.ErrTerminated) {
		c.setTerminated()
	}
	return err
}

// isClosing reports whether the stream ends because Close or Terminate was called.
func (c *Sandbox) isClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaving || c.terminated
}

func (c *Sandbox) setTerminated() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.terminated = true
	c.endUploads()
}

// endUploads unblocks uploads, which may wait for a reader of the caller for ever. The caller
// holds c.mu and has set the reason.
func (c *Sandbox) endUploads() {
	for k := range c.uploads {
		_ = k.SetReadDeadline(past())
	}
}

// registerUpload registers an upload. The returned function unregisters it and returns an error if the
// sandbox was terminated or the Sandbox was closed meanwhile.
func (c *Sandbox) registerUpload(k *call) (why func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uploads[k] = struct{}{}
	if c.terminated || c.leaving {
		_ = k.SetReadDeadline(past())
	}
	return func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.uploads, k)
		switch {
		case c.terminated:
			return primitives.ErrTerminated
		case c.leaving:
			return errWasClosed
		}
		return nil
	}
}

var errWasClosed = fmt.Errorf("%w: it was closed", primitives.ErrUnavailable)

// pollGuest asks the guest for the sandbox's state. It waits for an answer at most
// confirmTimeout.
func (c *Sandbox) pollGuest(ctx context.Context) (primitives.State, error) {
	bounded, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	var reply stateReply
	err := c.ask(bounded, "poll", "", opPoll, &empty{}, &reply)
	if err != nil && ctx.Err() == nil {
		if state, ended := c.endedState(); ended {
			return state, nil
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = c.fail("poll", "", fmt.Errorf("%w: the guest does not answer", primitives.ErrUnavailable))
		}
	}
	return reply.State, err
}

// endedState returns the state of the sandbox if the stream has ended during a call.
func (c *Sandbox) endedState() (primitives.State, bool) {
	switch err := c.Err(); {
	case err == nil || c.isClosed():
		return primitives.State{}, false
	case errors.Is(err, primitives.ErrTerminated):
		return primitives.State{Status: primitives.StatusTerminated}, true
	}
	return primitives.State{Status: primitives.StatusLost}, true
}

func (c *Sandbox) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// terminateGuest ends all processes of the sandbox. The stream stays open until Close.
func (c *Sandbox) terminateGuest(ctx context.Context) (primitives.TerminateReport, error) {
	if errors.Is(c.Err(), primitives.ErrTerminated) {
		return primitives.TerminateReport{}, nil
	}
	// Terminate runs to its end even if ctx is done, so wait for the answer.
	k, err := c.begin(ctx, callParams{op: "terminate", request: requestFrame(opTerminate, &empty{}), confirm: maxConfirm, always: true})
	if err != nil {
		return primitives.TerminateReport{}, err
	}
	defer k.end()
	var reply terminateReply
	if err := k.reply(&reply); err != nil {
		return reply.Report, err
	}
	if reply.Err != nil {
		return reply.Report, c.fail("terminate", "", c.remote(reply.Err))
	}
	c.setTerminated()
	return reply.Report, nil
}

// hangUp closes the stream after Terminate if nothing else uses the stream, and reports whether
// it did. A guest without a host and a sandbox exits by itself, which can be faster than ending
// it. Calls return the same errors as before.
func (c *Sandbox) hangUp() bool {
	c.mu.Lock()
	done := c.terminated && !c.closed && !c.paused
	c.mu.Unlock()
	if !done || c.mux.hasEnded() || c.mux.inUse() {
		return false
	}
	_ = c.mux.Close() // its errors are those of a stream that has ended
	return true
}

// Close ends the commands that this Sandbox started and that are not durable, the stream and
// the driver. It waits for the guest to confirm that, for a limited time. The backend decides
// how long the sandbox lives on.
func (c *Sandbox) Close() error {
	c.closing.Do(func() {
		c.terminating.Lock()
		defer c.terminating.Unlock()
		c.mu.Lock()
		c.leaving = true
		c.endUploads()
		c.mu.Unlock()
		if !c.isPaused() && (c.Err() == nil || errors.Is(c.Err(), primitives.ErrTerminated)) {
			c.sayBye()
		}
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		// mux.Close first closes the byte stream, which unblocks the reader that it then waits
		// for.
		if err := c.mux.Close(); err != nil {
			c.log.Debug("closing the guest stream", "error", err)
		}
		if c.driver != nil {
			c.closeErr = c.driver.Close()
		}
	})
	c.watcher.Wait()
	return c.wrap("close", c.closeErr)
}
