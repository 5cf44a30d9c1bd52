// Package relay keeps an agent's connection to the gateway available while no program serves
// the gateway: in a kept sandbox, the agent continues after the gateway's program has died.
// Requests wait until another program serves the same address. Proxy requests do not wait: they
// fail at once.
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

// unavailable is the answer to a request that has waited in vain. Agents retry.
const unavailable = `{"error":{"type":"api_error","code":503,"message":"agentenv: no program serves the gateway of this sandbox; attach to it, for example with envctl attach"}}`

// Relay forwards connections to an address, and waits until something listens there.
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

// Address returns the address on which the relay listens.
func (r *Relay) Address() string { return r.listener.Addr().String() }

// Close ends all connections and returns when they have ended.
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
		case err != nil: // a failed connection, or no file descriptors
			rest(ctx)
			continue
		}
		r.slots <- struct{}{} // does not block forever: Close ends the connections that hold slots
		r.work.Go(func() {
			defer func() { <-r.slots }()
			r.serve(ctx, conn.(*net.TCPConn))
		})
	}
}

// rest pauses, and reports whether to try again.
func rest(ctx context.Context) bool {
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// serve handles one connection.
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
		_, _ = io.Copy(io.Discard, in) // unread data would reset the answer
		return
	}
	defer out.Close()
	defer context.AfterFunc(ctx, func() { _ = out.Close() })()
	var both sync.WaitGroup
	both.Go(func() { carry(out, conn, in) })
	both.Go(func() { carry(conn, out, out) })
	both.Wait()
}

// dial connects to the target as soon as something listens there; it returns nil if nothing
// does in time.
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

// longestMethod exceeds the length of every HTTP method and the space after it, in bytes.
const longestMethod = 32

// isProxied reports whether a request is a proxy request: its method is followed by a host or a
// URL, not a path. It consumes nothing.
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

// carry copies data from one connection to the other. It closes or resets the second one as the
// first one ended: an agent must not take a truncated answer for a complete one.
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
