// Package relay keeps an agent's way to the gateway open while no program serves that: in a
// sandbox that is kept, an agent goes on when the program of its gateway has died. Requests wait
// until another one serves the same address. Those to the gateway as a proxy do not: the command
// that sends one is told at once.
package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	maxConns = 256 // at once; more wait in the system's queue
	patience = time.Minute
	pause    = 100 * time.Millisecond // between two tries

	drainTime = 5 * time.Second // for the rest of a request that is refused
)

// unavailable is what a request gets that has waited in vain. Agents ask again.
const unavailable = `{"error":{"type":"api_error","code":503,"message":"agentenv: no program serves the gateway of this sandbox; attach to it, for example with envctl attach"}}`

// Relay carries connections to an address, and waits for what listens there.
type Relay struct {
	listener net.Listener
	target   string
	patience time.Duration
	cancel   context.CancelFunc
	slots    chan struct{}
	work     sync.WaitGroup
}

// Start listens on a port of the loopback interface until ctx is done. The caller closes the
// relay.
func Start(ctx context.Context, target string) (*Relay, error) { return start(ctx, target, patience) }

func start(ctx context.Context, target string, patience time.Duration) (*Relay, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{listener: l, target: target, patience: patience, slots: make(chan struct{}, maxConns)}
	ctx, r.cancel = context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { _ = l.Close() })
	r.work.Go(func() { r.accept(ctx) })
	return r, nil
}

// Address is where it listens.
func (r *Relay) Address() string { return r.listener.Addr().String() }

// Close ends all connections and returns when that is done.
func (r *Relay) Close() error {
	r.cancel()
	err := r.listener.Close()
	r.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (r *Relay) accept(ctx context.Context) {
	for {
		conn, err := r.listener.Accept()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil: // of one connection, or for want of descriptors
			rest(ctx)
			continue
		}
		r.slots <- struct{}{} // a place becomes free in the end: Close ends what holds one
		r.work.Go(func() {
			defer func() { <-r.slots }()
			r.serve(ctx, conn.(*net.TCPConn))
		})
	}
}

// rest waits a moment and reports whether there is a next one.
func rest(ctx context.Context) bool {
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// serve carries one connection.
func (r *Relay) serve(ctx context.Context, conn *net.TCPConn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var in io.Reader = conn
	out := r.try(ctx)
	if out == nil {
		_ = conn.SetReadDeadline(time.Now().Add(r.patience))
		request := bufio.NewReader(conn)
		if in = request; !isProxied(request) {
			out = r.dial(ctx)
		}
		_ = conn.SetReadDeadline(time.Time{})
	}
	if out == nil {
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 10\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			len(unavailable), unavailable)
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(drainTime))
		_, _ = io.Copy(io.Discard, in) // else what is unread would reset the answer
		return
	}
	defer out.Close()
	defer context.AfterFunc(ctx, func() { _ = out.Close() })()
	var both sync.WaitGroup
	both.Go(func() { carry(out, conn, in) })
	both.Go(func() { carry(conn, out, out) })
	both.Wait()
}

// dial connects to the target, as soon as something listens there; nil if nothing does.
func (r *Relay) dial(ctx context.Context) *net.TCPConn {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	for {
		if conn := r.try(ctx); conn != nil {
			return conn
		}
		if !rest(ctx) {
			return nil
		}
	}
}

// try connects to the target; nil if nothing listens there.
func (r *Relay) try(ctx context.Context) *net.TCPConn {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.target)
	if err != nil {
		return nil
	}
	return conn.(*net.TCPConn)
}

// longestMethod is more than any method of HTTP has, in bytes, with the space behind it.
const longestMethod = 32

// isProxied reports whether a request is one to a proxy: what follows its method is a host
// or an address, and no path. It consumes nothing.
func isProxied(request *bufio.Reader) bool {
	for n := 2; n <= longestMethod; n++ {
		head, err := request.Peek(n)
		if err != nil {
			return false
		}
		if _, target, ok := strings.Cut(string(head), " "); ok && target != "" {
			return target != "/"
		}
	}
	return false
}

// carry copies what is read of a connection to the end of the data, and ends the other connection as this one has ended:
// an agent must not take an answer that was cut for a whole one.
func carry(to, from *net.TCPConn, in io.Reader) {
	_, err := io.Copy(to, in)
	if err == nil || errors.Is(err, io.EOF) {
		_ = to.CloseWrite()
		return
	}
	for _, conn := range []*net.TCPConn{to, from} {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
}
