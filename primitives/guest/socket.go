package guest

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Socket is a Unix socket of the host that the guest can reach because both run on the same
// kernel. It is faster than the usual stream of a sandbox, and outlives that stream.
type Socket struct {
	// Listener is the host's end. Dial closes it.
	Listener *net.UnixListener
	// Path is the path of the socket for the guest.
	Path string
}

// offer is a Socket on the wire. The token proves that the guest is the one that received the
// hello.
type offer struct {
	Path  string
	Token []byte
}

func codeOffer(c *codec, o *offer) {
	codeString(c, &o.Path)
	c.bytes(&o.Token)
}

// offerReply is the guest's answer to an offer, on the stream of the handshake. The guest decides
// whether to move.
type offerReply struct {
	Moved bool
	Pipes bool   // the host may pass pipes for the output of commands
	Why   string // why the guest stays
}

func (v *offerReply) code(c *codec) {
	c.bool(&v.Moved)
	c.bool(&v.Pipes)
	codeString(c, &v.Why)
}

const (
	tokenSize = 32
	// tokenAccepted is the host's answer to the right token.
	tokenAccepted = 1
	// moveTimeout is how long each step of the guest's move to a socket may take.
	moveTimeout = 2 * time.Second
	// maxCallers is how many connections may wait to show their token.
	maxCallers    = 16
	maxOfferReply = 4 << 10
)

// socketListener listens on a Unix socket until the guest connects.
type socketListener struct {
	listener *net.UnixListener
	offer    offer

	mu         sync.Mutex
	unverified map[*net.UnixConn]struct{} // connections that have not shown the token
	guest      *net.UnixConn              // the connection that has
	closed     bool
	joined     sync.WaitGroup
}

// open starts to listen for the guest.
func (s *Socket) open() *socketListener {
	r := &socketListener{
		listener: s.Listener, offer: offer{Path: s.Path, Token: make([]byte, tokenSize)},
		unverified: make(map[*net.UnixConn]struct{}),
	}
	_, _ = rand.Read(r.offer.Token) // never fails
	r.joined.Go(r.accept)
	return r
}

func (r *socketListener) accept() {
	for {
		c, err := r.listener.AcceptUnix()
		if err != nil {
			return
		}
		r.mu.Lock()
		if r.closed || r.guest != nil || len(r.unverified) >= maxCallers {
			_ = c.Close()
		} else {
			r.unverified[c] = struct{}{}
			r.joined.Go(func() { r.verify(c) })
		}
		r.mu.Unlock()
	}
}

// verify checks the token of a connecting client.
func (r *socketListener) verify(c *net.UnixConn) {
	var token [tokenSize]byte
	_ = c.SetDeadline(time.Now().Add(moveTimeout))
	_, err := io.ReadFull(c, token[:])
	right := err == nil && subtle.ConstantTimeCompare(token[:], r.offer.Token) == 1
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unverified, c)
	if !right || r.closed || r.guest != nil {
		_ = c.Close()
		return
	}
	r.guest = c
	// A byte fits in any socket: this does not wait.
	_, _ = c.Write([]byte{tokenAccepted})
	_ = c.SetDeadline(time.Time{})
}

// close ends the listener and returns the guest's connection, or nil if the guest has not
// connected.
func (r *socketListener) close() *net.UnixConn {
	r.mu.Lock()
	r.closed = true
	for c := range r.unverified {
		_ = c.Close()
	}
	r.mu.Unlock()
	_ = r.listener.Close()
	r.joined.Wait()
	return r.guest
}

// settle reads the guest's offerReply, and moves to the socket if the guest has.
func (r *socketListener) settle(_ context.Context, in *bufio.Reader, a *handshakeResult) error {
	v, err := readOfferReply(in)
	conn := r.close()
	switch {
	case err == nil && v.Moved && conn != nil:
		a.rw, a.in = conn, conn
		if v.Pipes {
			a.pipes = conn
		}
		return nil
	case err == nil && !v.Moved:
		a.why = v.Why
	case err == nil:
		err = fmt.Errorf("%w: the guest says that it has moved, and has not", errProtocol)
	}
	if conn != nil {
		_ = conn.Close()
	}
	return err
}

func readOfferReply(in io.Reader) (v offerReply, err error) {
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return v, streamError(err)
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxOfferReply {
		return v, fmt.Errorf("%w: a verdict of %d bytes", errProtocol, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(in, body); err != nil {
		return v, streamError(err)
	}
	if err := decode(body, &v); err != nil {
		return v, fmt.Errorf("%w: %w", errProtocol, err)
	}
	return v, nil
}

// stay is the settle function if no socket was offered.
func stay(context.Context, *bufio.Reader, *handshakeResult) error { return nil }

var errStays = errors.New("this guest takes no socket of its host")

// move is the settle function of the guest: it moves to the socket of the host's offer, if it
// can and does not stay.
func move(ctx context.Context, a *handshakeResult, pipes, stays bool) error {
	if a.theirs.Offer == nil {
		return nil
	}
	var conn *net.UnixConn
	err := errStays
	if !stays {
		conn, err = a.theirs.Offer.take(ctx)
	}
	v := offerReply{Moved: err == nil, Pipes: pipes && err == nil}
	if err != nil {
		v.Why = clip(err.Error(), maxOfferReply/2)
	}
	body := encode(&v)
	if _, werr := a.rw.Write(append(appendLength(nil, len(body)), body...)); werr != nil {
		if conn != nil {
			_ = conn.Close()
		}
		return werr
	}
	if err == nil {
		a.rw, a.in = conn, conn
		if pipes {
			a.pipes = conn
		}
	}
	return nil
}

var errTokenRejected = errors.New("another program listens there")

// take connects to the host's socket and shows the token.
func (o *offer) take(ctx context.Context) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", o.Path)
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UnixConn)
	var answer [1]byte
	_ = conn.SetDeadline(time.Now().Add(moveTimeout))
	if _, err = conn.Write(o.Token); err == nil {
		_, err = io.ReadFull(conn, answer[:])
	}
	if err == nil && answer[0] != tokenAccepted {
		err = errTokenRejected
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, nil
}
