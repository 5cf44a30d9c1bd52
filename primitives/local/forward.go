package local

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
)

// forwards holds the listeners and connections of a handle, which are closed with the handle.
type forwards struct {
	mu   sync.Mutex
	open map[io.Closer]struct{}
	over bool
}

// add registers c until it is removed. It returns false if the handle has ended.
func (f *forwards) add(c io.Closer) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return false
	}
	if f.open == nil {
		f.open = make(map[io.Closer]struct{})
	}
	f.open[c] = struct{}{}
	return true
}

func (f *forwards) remove(c io.Closer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, c)
}

// end closes everything that is registered, and makes later calls of add return false.
func (f *forwards) end() {
	f.mu.Lock()
	f.over = true
	open := f.open
	f.open = nil
	f.mu.Unlock()
	for c := range open {
		if conn, ok := c.(*conn); ok {
			_ = conn.SetLinger(0) // a reset: the peer must not read EOF
		}
		_ = c.Close()
	}
}

// Listen implements primitives.Forwarder. Outside of containers the sandbox uses the network of its
// machine, so every program on that machine can connect.
func (s *Sandbox) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	l, err := s.listen(ctx, network, address)
	if err != nil {
		return nil, s.fail("listen", address, err)
	}
	return l, nil
}

func (s *Sandbox) listen(ctx context.Context, network, address string) (net.Listener, error) {
	if err := primitives.CheckEndpoint(network, address); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.checkUsableLocked(); err != nil {
		return nil, err
	}
	l := &listener{s: s, done: func() {}}
	var cfg net.ListenConfig
	var err error
	if network == "unix" {
		l.Listener, err = s.listenUnix(ctx, l, address)
	} else {
		raiseLoopback()
		l.Listener, err = cfg.Listen(ctx, network, address)
	}
	if err != nil {
		return nil, err
	}
	s.forwards.add(l)
	return l, nil
}

// listenUnix makes a socket that the user of the sandbox owns.
func (s *Sandbox) listenUnix(ctx context.Context, l *listener, address string) (net.Listener, error) {
	name, done, err := s.files.Socket(ctx, address, true)
	if err != nil {
		return nil, err
	}
	var cfg net.ListenConfig
	ln, err := cfg.Listen(ctx, "unix", name)
	if err != nil {
		done()
		return nil, files.Classify(err)
	}
	if err := s.files.Own(name); err != nil {
		err = errors.Join(err, ln.Close())
		done()
		return nil, err
	}
	l.done, l.addr = done, &net.UnixAddr{Name: address, Net: "unix"}
	return ln, nil
}

// listener is a listener that is closed with its sandbox's handle.
type listener struct {
	net.Listener
	s    *Sandbox
	addr net.Addr // nil means the address of Listener
	once sync.Once
	done func()
}

// Accept accepts the next connection.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		if ended := l.s.checkUsable(); ended != nil {
			return nil, l.s.fail("accept", l.Addr().String(), ended)
		}
		return nil, err
	}
	return l.s.keep(c)
}

func (l *listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		l.s.forwards.remove(l)
		err = l.Listener.Close()
		l.done()
	})
	return err
}

func (l *listener) Addr() net.Addr {
	if l.addr != nil {
		return l.addr
	}
	return l.Listener.Addr()
}

// halfConn is a connection that can close its writing side, such as *net.TCPConn and *net.UnixConn.
type halfConn interface {
	net.Conn
	CloseWrite() error
}

// conn is a connection that is closed with its sandbox's handle.
type conn struct {
	halfConn
	s *Sandbox
}

// keep registers a connection with the handle until the connection is closed.
func (s *Sandbox) keep(c net.Conn) (net.Conn, error) {
	half, ok := c.(halfConn)
	if !ok {
		return nil, errors.Join(errors.ErrUnsupported, c.Close())
	}
	kept := &conn{halfConn: half, s: s}
	if !s.forwards.add(kept) {
		return nil, errors.Join(s.fail("connect", "", s.checkUsable()), c.Close())
	}
	return kept, nil
}

// SetLinger calls the method of a *net.TCPConn; other connections do not support it.
func (c *conn) SetLinger(sec int) error {
	if tcp, ok := c.halfConn.(*net.TCPConn); ok {
		return tcp.SetLinger(sec)
	}
	return errors.ErrUnsupported
}

// Close closes the connection.
func (c *conn) Close() error {
	c.s.forwards.remove(c)
	return c.halfConn.Close()
}

// Dial implements primitives.Forwarder.
func (s *Sandbox) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := s.dial(ctx, network, address)
	if err != nil {
		return nil, s.fail("dial", address, err)
	}
	return s.keep(c)
}

func (s *Sandbox) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := primitives.CheckEndpoint(network, address); err != nil {
		return nil, err
	}
	if err := s.checkUsable(); err != nil {
		return nil, err
	}
	if network == "unix" {
		name, done, err := s.files.Socket(ctx, address, false)
		if err != nil {
			return nil, err
		}
		defer done()
		address = name
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	connected := make(chan struct{})
	defer close(connected)
	waiting.Go(func() {
		select {
		case <-s.down:
			cancel(s.checkUsable())
		case <-connected:
		}
	})
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	return c, err
}
