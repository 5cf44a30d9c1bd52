package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/agentenv-dev/agentenv/primitives"
)

// maxConns is how many connections a handle may have at once. The other streams remain for
// everything else, so that a sandbox with very many connections stays usable.
const maxConns = maxStreams / 2

// Dial implements primitives.Forwarder.
func (c *Sandbox) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := primitives.CheckEndpoint(network, address); err != nil {
		return nil, c.fail("dial", address, err)
	}
	select {
	case c.conns <- struct{}{}:
	default:
		return nil, c.fail("dial", address, fmt.Errorf("%w: %d connections are open; close those that are done", primitives.ErrLimit, maxConns))
	}
	k, err := c.start(ctx, "dial", address, opDial, &endpointRequest{network, address})
	var ends endpoints
	if err == nil {
		err = k.reply(&ends)
	}
	if err == nil && !k.stop() { // ctx covers only dialing
		err = k.failed(ctx.Err())
	}
	if err != nil {
		if k != nil {
			k.end()
		}
		<-c.conns
		return nil, err
	}
	k.ctx = context.WithoutCancel(ctx)
	return newConn(k, ends), nil
}

// Listen implements primitives.Forwarder.
func (c *Sandbox) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	if err := primitives.CheckEndpoint(network, address); err != nil {
		return nil, c.fail("listen", address, err)
	}
	k, err := c.start(ctx, "listen", address, opListen, &endpointRequest{network, address})
	if err != nil {
		return nil, err
	}
	var ends endpoints
	err = k.reply(&ends)
	if err == nil && !k.stop() {
		err = k.failed(ctx.Err())
	}
	if err != nil {
		k.end()
		return nil, err
	}
	k.ctx = context.WithoutCancel(ctx)
	return &listener{call: k, addr: addrOf(ends.Network, ends.Local), closed: make(chan struct{})}, nil
}

// addrOf returns an address that a guest reported.
func addrOf(network, address string) net.Addr {
	if ap, err := netip.ParseAddrPort(address); err == nil && network == "tcp" {
		return net.TCPAddrFromAddrPort(ap)
	}
	return &net.UnixAddr{Name: address, Net: network}
}

// listener accepts the connections that the guest announces.
type listener struct {
	call   *call
	addr   net.Addr
	mu     sync.Mutex // held by the Accept that reads
	err    error      // guarded by mu
	once   sync.Once
	closed chan struct{}
}

// Accept returns the next connection. It waits while the handle has maxConns connections.
func (l *listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.call.c
	select {
	case c.conns <- struct{}{}:
	case <-l.closed:
		return nil, l.failed(net.ErrClosed)
	case <-c.done:
		return nil, l.failed(c.Err())
	}
	conn, err := l.accept()
	if err != nil {
		<-c.conns
		return nil, err
	}
	return conn, nil
}

// accept reads announcements until it can take a connection. A read error is permanent. A
// connection that cannot be taken now is left to the guest, which resets it.
func (l *listener) accept() (net.Conn, error) {
	for l.err == nil {
		var a announcement
		if l.err = l.next(&a); l.err != nil {
			break
		}
		k, err := l.call.c.begin(l.call.ctx, callParams{op: "accept", target: l.addr.String(), request: requestFrame(opAccept, &acceptRequest{a.Token})})
		switch {
		case err == nil:
			return newConn(k, a.endpoints), nil
		case errors.Is(err, primitives.ErrLimit), errors.Is(err, errPaused):
		default:
			return nil, err
		}
	}
	return nil, l.err
}

// next reads an announcement.
func (l *listener) next(a *announcement) error {
	kind, payload, err := l.call.readMessage(maxReply)
	select {
	case <-l.closed:
		return l.failed(net.ErrClosed)
	default:
	}
	switch {
	case err != nil:
		return l.call.failed(err)
	case kind == frameError:
		return l.call.answered(payload)
	case kind != frameItem:
		return l.call.failed(unexpected(kind))
	}
	if err := decode(payload, a); err != nil {
		return l.call.failed(fmt.Errorf("%w: %w", errProtocol, err))
	}
	return nil
}

func (l *listener) failed(err error) error {
	return l.call.c.fail("accept", l.addr.String(), err)
}

// Close ends the listener and returns when the guest has ended it, so that its address is free
// again.
func (l *listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		close(l.closed)
		_ = l.call.halfClose()
		_ = l.call.SetReadDeadline(time.Now().Add(confirmTimeout))
		l.mu.Lock() // either Accept or this loop reads to the end
		defer l.mu.Unlock()
		for end := time.Now().Add(confirmTimeout); time.Now().Before(end); {
			if _, _, err := l.call.readMessage(maxReply); err != nil {
				break
			}
		}
		err = l.call.Close()
	})
	return err
}

// Addr returns the address inside the sandbox.
func (l *listener) Addr() net.Addr { return l.addr }

// conn is the host's end of a connection. The stream carries data frames, and an end frame when
// a half is closed. A stream that ends without an end frame was reset.
type conn struct {
	call          *call
	local, remote net.Addr
	closing       sync.Once
	closed        atomic.Bool
	resets        atomic.Bool // Close resets the connection
	readBy        deadline
	writeBy       deadline

	rmu   sync.Mutex
	head  [frameHeader]byte
	have  int // number of bytes in head
	left  int // unread bytes of the current frame
	ended error

	wmu      sync.Mutex
	buf      []byte
	rest     []byte // unsent rest of the frame that a deadline interrupted
	halfDone bool   // CloseWrite was called
}

// newConn returns a conn, which takes over the caller's place in conns.
func newConn(k *call, ends endpoints) *conn {
	return &conn{call: k, local: addrOf(ends.Network, ends.Local), remote: addrOf(ends.Network, ends.Remote)}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	for {
		switch {
		case c.closed.Load():
			return 0, c.failed("read", net.ErrClosed)
		case c.readBy.passed():
			return 0, c.failed("read", yamux.ErrTimeout)
		}
		if c.left > 0 {
			break
		}
		if c.ended != nil {
			return 0, c.ended
		}
		if err := c.next(); err != nil {
			return 0, c.failed("read", err)
		}
	}
	n, err := c.call.Read(p[:min(len(p), c.left)])
	c.left -= n
	if err != nil && n == 0 {
		return 0, c.failed("read", err)
	}
	return n, nil
}

// next reads the next header. If a deadline interrupts it, the next call continues.
func (c *conn) next() error {
	for c.have < frameHeader {
		n, err := c.call.Read(c.head[c.have:])
		if c.have += n; err != nil && n == 0 {
			return err
		}
	}
	c.have = 0
	kind, n := c.head[0], binary.BigEndian.Uint32(c.head[1:])
	switch {
	case n > maxFrame:
		c.ended = c.failed("read", fmt.Errorf("%w: a frame of %d bytes", errProtocol, n))
	case kind == frameData && n > 0:
		c.left = int(n)
	case kind == frameEnd && n == 0:
		c.ended = io.EOF
	case kind == frameError:
		payload := make([]byte, n)
		if _, err := io.ReadFull(c.call.Stream, payload); err != nil {
			return err
		}
		c.ended = c.call.answered(payload)
	default:
		c.ended = c.failed("read", unexpected(kind))
	}
	return nil
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (n int, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	for {
		if err := c.flush(); err != nil || n == len(p) {
			return n, err
		}
		part := p[n:min(n+maxFrame, len(p))]
		c.buf = append(appendHeader(c.buf[:0], frameData, len(part)), part...)
		left, err := c.call.sendPart(c.buf)
		if len(left) < len(c.buf) {
			n += len(part) // the rest is sent first by the next write
			c.rest = left
		}
		if err != nil {
			return n, c.failed("write", err)
		}
	}
}

// flush sends the unsent rest of a frame.
func (c *conn) flush() error {
	switch {
	case c.closed.Load():
		return c.failed("write", net.ErrClosed)
	case c.writeBy.passed():
		return c.failed("write", yamux.ErrTimeout)
	}
	if len(c.rest) > 0 {
		var err error
		if c.rest, err = c.call.sendPart(c.rest); err != nil {
			return c.failed("write", err)
		}
	}
	if c.halfDone {
		return c.failed("write", syscall.EPIPE)
	}
	return nil
}

// CloseWrite closes the writing half: the peer reads io.EOF after the data.
func (c *conn) CloseWrite() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if err := c.flush(); c.halfDone && errors.Is(err, syscall.EPIPE) {
		return nil // the end frame has now been sent
	} else if err != nil {
		return err
	}
	c.halfDone = true
	var err error
	if c.rest, err = c.call.sendPart(appendHeader(nil, frameEnd, 0)); err != nil {
		return c.failed("close", err)
	}
	return nil
}

// Close closes the connection. The rest of an interrupted frame is lost, and the peer notices.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		c.closed.Store(true)
		_ = c.call.SetReadDeadline(past())
		_ = c.call.SetWriteDeadline(past())
		if c.resets.Load() {
			_, _ = c.call.Write([]byte{frameData}) // a stream that ends inside a frame is a reset
		}
		err = c.call.Close()
		<-c.call.c.conns
	})
	return err
}

// SetLinger is like that of *net.TCPConn, but only zero has an effect: Close then resets the
// connection.
func (c *conn) SetLinger(sec int) error {
	c.resets.Store(sec == 0)
	return nil
}

// failed returns the error for a failure of the stream, as the net package does.
func (c *conn) failed(op string, err error) error {
	sandbox := c.call.c
	switch {
	case c.closed.Load():
		err = net.ErrClosed
	case errors.Is(err, syscall.EPIPE):
	case sandbox.mux.hasEnded():
		err = sandbox.fail(op, c.call.target, sandbox.broken(errEnded))
	case errors.Is(err, yamux.ErrTimeout):
		err = os.ErrDeadlineExceeded
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = syscall.ECONNRESET
	default:
		err = sandbox.fail(op, c.call.target, sandbox.broken(err))
	}
	return &net.OpError{Op: op, Net: c.local.Network(), Source: c.local, Addr: c.remote, Err: err}
}

// LocalAddr returns the address of this end, as the sandbox sees it.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the process in the sandbox.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.readBy, t, c.call.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.writeBy, t, c.call.SetWriteDeadline)
}

func (c *conn) setDeadline(d *deadline, t time.Time, set func(time.Time) error) error {
	if c.closed.Load() {
		return c.failed("set", net.ErrClosed)
	}
	d.set(t)
	return set(t)
}

// deadline is the time after which no operation starts. yamux checks its own deadlines only
// when it must wait.
type deadline struct{ at atomic.Int64 } // nanoseconds since 1970; zero means none

func (d *deadline) set(t time.Time) {
	if t.IsZero() {
		d.at.Store(0)
		return
	}
	d.at.Store(max(1, t.UnixNano()))
}

func (d *deadline) passed() bool {
	at := d.at.Load()
	return at != 0 && time.Now().UnixNano() >= at
}
