package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	// maxOffers is how many announced connections of a listener may wait for the host; more
	// wait in the system's queue.
	maxOffers = 64
	// offerTimeout is how long an announced connection waits.
	offerTimeout = 30 * time.Second
)

// offers are the connections that have been announced and not accepted.
type offers struct {
	timeout time.Duration // how long they wait

	mu   sync.Mutex
	last uint64
	open map[uint64]*waiting
}

// waiting is a connection that waits for the host.
type waiting struct {
	conn    net.Conn
	timeout *time.Timer
	slots   chan struct{} // of the listener
}

// add registers a waiting connection and returns its token.
func (o *offers) add(conn net.Conn, slots chan struct{}) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last++
	token := o.last
	if o.open == nil {
		o.open = make(map[uint64]*waiting)
	}
	o.open[token] = &waiting{conn, time.AfterFunc(o.timeout, func() { o.drop(token) }), slots}
	return token
}

// take removes and returns the waiting connection with this token, or nil.
func (o *offers) take(token uint64) net.Conn {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.open[token]
	if w == nil {
		return nil
	}
	delete(o.open, token)
	w.timeout.Stop()
	<-w.slots
	return w.conn
}

// drop resets the connection with this token, if it still waits.
func (o *offers) drop(token uint64) {
	if conn := o.take(token); conn != nil {
		reset(conn)
	}
}

// dropAll resets all waiting connections of a listener.
func (o *offers) dropAll(slots chan struct{}) {
	o.mu.Lock()
	var tokens []uint64
	for token, w := range o.open {
		if w.slots == slots {
			tokens = append(tokens, token)
		}
	}
	o.mu.Unlock()
	for _, token := range tokens {
		o.drop(token)
	}
}

// reset closes a connection so that the peer cannot mistake this for the end of the data.
func reset(conn net.Conn) {
	if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// listen announces the connections of a listener until the host closes it.
func (s *server) listen(ctx context.Context, op *operation) error {
	var req endpointRequest
	if err := op.request(&req); err != nil {
		return err
	}
	ln, err := primitives.Listen(ctx, s.p, req.Network, req.Address)
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	_ = op.sendMessage(frameReply, &endpoints{Network: req.Network, Local: ln.Addr().String()})
	slots := make(chan struct{}, maxOffers)
	defer s.offers.dropAll(slots)
	return op.abandonable(func() error {
		defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
		for {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return nil // the end of the stream is the answer
			}
			conn, err := ln.Accept()
			switch {
			case ctx.Err() != nil && err == nil:
				reset(conn)
				return nil
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			}
			said := &announcement{Token: s.offers.add(conn, slots), endpoints: endpointsOf(conn)}
			if err := op.sendMessage(frameItem, said); err != nil {
				return err
			}
		}
	})
}

func endpointsOf(conn net.Conn) endpoints {
	return endpoints{Network: conn.LocalAddr().Network(), Local: conn.LocalAddr().String(), Remote: conn.RemoteAddr().String()}
}

// takeOffer forwards a connection that was announced.
func (s *server) takeOffer(ctx context.Context, op *operation) error {
	var req acceptRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return s.carry(ctx, op, func(context.Context) (net.Conn, error) {
		if conn := s.offers.take(req.Token); conn != nil {
			return conn, nil
		}
		return nil, fmt.Errorf("%w: nobody accepted the connection in time", fs.ErrClosed)
	})
}

// dial connects inside the sandbox and forwards the connection.
func (s *server) dial(ctx context.Context, op *operation) error {
	var req endpointRequest
	if err := op.request(&req); err != nil {
		return err
	}
	return s.carry(ctx, op, func(ctx context.Context) (net.Conn, error) {
		conn, err := primitives.Dial(ctx, s.p, req.Network, req.Address)
		if err == nil {
			ends := endpointsOf(conn)
			_ = op.sendMessage(frameReply, &ends)
		}
		return conn, err
	})
}

// carry forwards the bytes of a connection until the host closes it. In both directions they go
// in data frames; an end frame closes a half, and an error frame or a stream that ends in the
// middle of a frame resets the connection.
func (s *server) carry(ctx context.Context, op *operation, connect func(context.Context) (net.Conn, error)) error {
	dialing, giveUp := context.WithCancel(ctx)
	defer giveUp()
	connected := make(chan net.Conn, 1)
	var fromHost sync.WaitGroup
	fromHost.Go(func() {
		kind, n, err := op.readHeader() // precedes the reply only if the host gives up
		giveUp()
		if conn := <-connected; conn != nil {
			if op.deliver(conn, kind, n, err) {
				_ = conn.Close()
			}
			op.cancel()
		}
	})
	conn, err := connect(dialing)
	if err != nil {
		close(connected)
		_ = op.SetReadDeadline(past())
		fromHost.Wait()
		return err
	}
	connected <- conn
	stop := context.AfterFunc(ctx, func() {
		_ = op.SetWriteDeadline(past())
		reset(conn)
	})
	defer stop()
	s.collect(ctx, op, conn)
	fromHost.Wait()
	return nil
}

// deliver writes the host's data to conn until the host closes the stream. It reports whether
// the data was complete. kind, n and err belong to the first header. Data that cannot be
// written is discarded: the process may have answered before it closed.
func (op *operation) deliver(conn io.Writer, kind byte, n int, err error) bool {
	var buf []byte
	broken := false
	for ; ; kind, n, err = op.readHeader() {
		switch {
		case err != nil: // yamux also reports the end of the session as the end of a stream
			return errors.Is(err, errEnded) && !op.session.hasEnded()
		case kind == frameData && n > 0:
			buf = slices.Grow(buf[:0], n)[:n]
			if _, err := io.ReadFull(op.Stream, buf); err != nil {
				return false
			}
			if !broken {
				_, err := conn.Write(buf)
				broken = err != nil
			}
		case kind == frameEnd && n == 0:
			broken = closeWrite(conn) != nil || broken
		default:
			return false
		}
	}
}

func closeWrite(conn io.Writer) error {
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// collect sends the host what it reads from the connection.
func (s *server) collect(ctx context.Context, op *operation, conn net.Conn) {
	buf := make([]byte, maxFrame+frameHeader)
	for {
		n, err := conn.Read(buf[frameHeader:])
		if n > 0 {
			appendHeader(buf[:0], frameData, n)
			if op.send(buf[:frameHeader+n]) != nil {
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			if s.ending() == nil { // otherwise the process was ended, perhaps before it sent everything
				_ = op.send(appendHeader(nil, frameEnd, 0))
			}
			return
		default:
			if ctx.Err() == nil {
				_ = op.sendError(err)
			}
			return
		}
	}
}
