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
	// Backend names the sandbox's kind in errors ("docker"). Empty leaves what
	// the guest says.
	Backend string
	// Logger gets what happens to the stream; nil is silence.
	Logger hclog.Logger
	// HandshakeTimeout bounds the handshake; zero means
	// DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// KeepAlive is how often a silent guest is asked whether it still lives and
	// how long it may take to answer: a guest that is stopped for longer is
	// lost. Zero means 30 seconds. Negative never asks; then only the end of
	// the stream is noticed.
	KeepAlive time.Duration
	// Ended says why the stream has ended by itself, for a backend that can
	// find out more than the stream tells: an error that is
	// primitives.ErrTerminated or primitives.ErrUnavailable, and os.ErrProcessDone
	// too if nothing runs in the sandbox any more. It is called often,
	// from several goroutines, and must not call the Client. Nil knows no more.
	Ended func() error
	// Isolation is what the sandbox is given by its backend, whatever the guest
	// says.
	Isolation primitives.Isolation
	// Socket, if not nil, is where the guest may move to after the handshake. If
	// it cannot, everything goes on over the stream.
	Socket *Socket
}

// Client is the host's end of a guest's stream: the sandbox that the guest
// serves, as an EnvironmentPrimitive with those optional interfaces that a guest
// can offer. It may be used by several goroutines at once.
//
// It knows the sandbox only through the stream. A backend wraps it and answers
// Poll itself, because when the stream is gone ([Client.Done]) only the backend
// can say what became of the sandbox; until then the Client says
// [primitives.StatusLost].
type Client struct {
	cfg    Config
	log    hclog.Logger
	mux    *session
	hello  hello
	tokens atomic.Uint64

	mu         sync.Mutex
	closed     bool
	ending     bool // Close or Terminate was called
	terminated bool
	paused     bool
	grace      time.Duration // the longest of the commands so far
	uploads    map[*call]struct{}
	leaving    bool // Close has begun
	closing    sync.Once
	watcher    sync.WaitGroup
	done       chan struct{}
}

// The Client is everything that package primitives has an interface for, but what
// only a backend can do: to copy, freeze and measure the sandbox.
var (
	_ primitives.EnvironmentPrimitive = (*Client)(nil)
	_ primitives.Runner               = (*Client)(nil)
	_ primitives.BatchWriter          = (*Client)(nil)
	_ primitives.Packer               = (*Client)(nil)
	_ primitives.Unpacker             = (*Client)(nil)
	_ primitives.Reattacher           = (*Client)(nil)
)

// Dial shakes hands with the guest at the other end of rw, which belongs to the
// Client from then on. It is closed if Dial fails and when the guest has moved to
// cfg.Socket, which happens before Dial returns. Closing rw must unblock its
// readers and writers. ctx covers the handshake only.
//
// A failed handshake is a [*HandshakeError].
func Dial(ctx context.Context, rw io.ReadWriteCloser, cfg Config) (*Client, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	agreed, err := greet(ctx, rw, cfg)
	if err != nil {
		return nil, &primitives.Error{Op: "dial", Backend: cfg.Backend, Err: err}
	}
	cfg.Logger.Debug("connected to the guest", "socket", agreed.rw != rw, "pipes", agreed.pipes != nil, "stays_because", agreed.why)
	cfg.Socket = nil // it is closed
	c, err := newClient(agreed, cfg)
	if err != nil {
		return nil, &primitives.Error{Op: "dial", Backend: cfg.Backend, Err: err}
	}
	return c, nil
}

// newClient returns the Client of what a handshake ended with.
func newClient(agreed *agreed, cfg Config) (*Client, error) {
	log := cfg.Logger
	mux, err := newSession(agreed, true, cfg.KeepAlive, log)
	if err != nil {
		return nil, errors.Join(err, agreed.rw.Close())
	}
	c := &Client{cfg: cfg, log: log, mux: mux, hello: agreed.theirs, done: make(chan struct{}), uploads: make(map[*call]struct{})}
	mux.whenEnded(func() {
		c.watcher.Go(func() {
			<-mux.CloseChan()
			// Returns when yamux's goroutines have seen it, too.
			_ = mux.Close()
			if c.isEnding() {
				log.Debug("connection to the guest closed")
			} else {
				log.Warn("connection to the guest lost")
			}
			close(c.done)
		})
	})
	return c, nil
}

// greet shakes hands and offers the guest the socket if there is one.
func greet(ctx context.Context, rw io.ReadWriteCloser, cfg Config) (*agreed, error) {
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

// ID returns the sandbox's identity as the guest knows it.
func (c *Client) ID() string { return c.hello.ID }

// Paths returns where the sandbox keeps its folders.
func (c *Client) Paths() primitives.Paths { return c.hello.Paths }

// Capabilities returns what the sandbox can do. Copying, freezing and measuring it
// is not the guest's but its backend's to offer, and so is its isolation.
func (c *Client) Capabilities() primitives.Capabilities {
	can := c.hello.Capabilities
	can.Snapshot, can.Fork, can.Pause, can.Usage = false, false, false, false
	can.Isolation = c.cfg.Isolation
	return can
}

// Done is closed when the stream has ended, by Close or by itself. After that
// every call fails with what Err returns.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why calls fail: nil while the stream works,
// primitives.ErrTerminated once the sandbox was terminated, and
// primitives.ErrUnavailable when the stream broke or the Client was closed.
func (c *Client) Err() error {
	ended := c.mux.hasEnded() // first: Close says that it closes before it does
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
	case c.cfg.Ended != nil:
		return c.cfg.Ended()
	}
	return fmt.Errorf("%w: the guest's stream ended", primitives.ErrUnavailable)
}

// SetPaused says whether the sandbox is frozen, which only its backend knows. As
// long as it is, the guest is not asked whether it lives, operations that begin are
// primitives.ErrUnavailable, and Close does not wait for the guest. What was under
// way waits.
func (c *Client) SetPaused(paused bool) {
	c.mu.Lock()
	c.paused = paused
	c.mu.Unlock()
	c.mux.alive.rest(paused)
}

// Rest has the guest not asked whether it lives while its sandbox is frozen for a
// moment, in which calls wait. The function that it returns ends that.
func (c *Client) Rest() (wake func()) {
	c.mux.alive.rest(true)
	return func() { c.mux.alive.rest(c.isPaused()) }
}

func (c *Client) isPaused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused
}

// errPaused is what calls get while the sandbox is paused.
var errPaused = fmt.Errorf("%w: it is paused; resume it", primitives.ErrUnavailable)

// broken explains an error of the stream itself.
func (c *Client) broken(cause error) error {
	if errors.Is(cause, primitives.ErrUnavailable) || errors.Is(cause, primitives.ErrTerminated) {
		return cause
	}
	if err := c.Err(); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", primitives.ErrUnavailable, cause)
}

// fail says where err happened.
func (c *Client) fail(op, target string, err error) error {
	if _, ok := errors.AsType[*primitives.Error](err); ok {
		return err
	}
	return &primitives.Error{Op: op, Backend: c.cfg.Backend, Target: target, Err: err}
}

// remote rebuilds an error that the guest reported.
func (c *Client) remote(w *wireError) error {
	err := fromWire(w, c.cfg.Backend)
	if errors.Is(err, primitives.ErrTerminated) {
		c.setTerminated()
	}
	return err
}

func (c *Client) setEnding() {
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
}

func (c *Client) isEnding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ending || c.closed || c.terminated
}

func (c *Client) setTerminated() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.terminated = true
	c.endUploads()
}

// endUploads ends what reads from the caller, who may never have more to say. The caller
// holds c.mu and has said why.
func (c *Client) endUploads() {
	for k := range c.uploads {
		_ = k.SetReadDeadline(past())
	}
}

// taking counts an upload. The function that it returns says whether the sandbox was
// terminated or the Client closed meanwhile.
func (c *Client) taking(k *call) (why func() error) {
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

// Poll asks the guest for the sandbox's state. When the stream has ended it is
// StatusTerminated after Terminate, else StatusLost. It waits at most
// a few seconds for an answer.
func (c *Client) Poll(ctx context.Context) (primitives.State, error) {
	switch err := c.Err(); {
	case errors.Is(err, primitives.ErrTerminated):
		return primitives.State{Status: primitives.StatusTerminated}, nil
	case err != nil && c.isClosed():
		return primitives.State{}, c.fail("poll", "", err)
	case err != nil:
		return primitives.State{Status: primitives.StatusLost}, nil
	}
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

// endedState is the state when the stream has ended under a call of Poll.
func (c *Client) endedState() (primitives.State, bool) {
	switch err := c.Err(); {
	case err == nil || c.isClosed():
		return primitives.State{}, false
	case errors.Is(err, primitives.ErrTerminated):
		return primitives.State{Status: primitives.StatusTerminated}, true
	}
	return primitives.State{Status: primitives.StatusLost}, true
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Terminate has the guest terminate the sandbox. The stream stays open until
// Close.
func (c *Client) Terminate(ctx context.Context) (primitives.TerminateReport, error) {
	if errors.Is(c.Err(), primitives.ErrTerminated) {
		return primitives.TerminateReport{}, nil
	}
	c.setEnding()
	// Terminating runs to its end even if ctx is done, so the answer is worth
	// waiting for.
	k, err := c.begin(ctx, beginning{op: "terminate", request: requestFrame(opTerminate, &empty{}), confirm: maxConfirm, always: true})
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

// HangUp closes the stream after Terminate, if nothing is open on it any more, and
// reports whether it has now. A guest without a host and a sandbox ends by itself, which
// can be faster than to have it ended. Calls say what they said before.
func (c *Client) HangUp() bool {
	c.mu.Lock()
	done := c.terminated && !c.closed && !c.paused
	c.mu.Unlock()
	if !done || c.mux.hasEnded() || c.mux.inUse() {
		return false
	}
	_ = c.mux.Close() // its errors are those of a stream that has ended
	return true
}

// Close ends the commands that this Client started and that are not durable,
// and the stream. It waits for the guest to confirm that, but not for ever.
func (c *Client) Close() error {
	c.closing.Do(func() {
		c.setEnding()
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
		// Not mux.Close alone: it waits for a reader that only closing the
		// stream unblocks, which it does first.
		if err := c.mux.Close(); err != nil {
			c.log.Debug("closing the guest stream", "error", err)
		}
	})
	c.watcher.Wait()
	return nil
}
