package testdocker

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Proxy is a proxy between a client and the engine, to break or observe their connections. Its
// methods may be called from several goroutines.
type Proxy struct {
	listener net.Listener
	engine   string // the socket of the engine

	mu     sync.Mutex
	conns  []net.Conn // both sides of all open connections
	hung   bool
	resume chan struct{} // closed by Flow
	seen   func(method, path string)
	closed bool
	joined sync.WaitGroup
}

// NewProxy returns a proxy of the engine. It listens on its own socket until the test ends.
func NewProxy(t testing.TB) *Proxy {
	t.Helper()
	return NewProxyOf(t, Engine(t).DaemonHost())
}

// NewProxyOf is like NewProxy, for an engine at a unix:// address.
func NewProxyOf(t testing.TB, host string) *Proxy {
	t.Helper()
	socket, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		t.Fatalf("these tests need an engine behind a Unix socket, not %s", host)
	}
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", filepath.Join(shortDir(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, engine: socket, resume: make(chan struct{})}
	p.joined.Go(p.accept)
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		_ = l.Close()
		p.Flow()
		p.Cut()
		p.joined.Wait()
	})
	return p
}

// shortDir returns a temporary folder for sockets, whose paths must be short.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ae") //nolint:usetesting // TempDir's paths hold the test's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Host returns the proxy's address, for use as the engine's.
func (p *Proxy) Host() string { return "unix://" + p.listener.Addr().String() }

// Cut closes all connections. New connections work.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// Hang stops forwarding until Flow. Connections, also new ones, stay open.
func (p *Proxy) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hung = true
}

// Flow ends Hang.
func (p *Proxy) Flow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hung {
		p.hung = false
		close(p.resume)
		p.resume = make(chan struct{})
	}
}

// Before calls f with the method and the path, including the query, of the first request of
// every new connection. It does so once the request is complete and before any of it is
// forwarded. Requests that exceed the proxy's buffer are not reported. A client without idle
// connections opens a connection for each request.
func (p *Proxy) Before(f func(method, path string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = f
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.joined.Go(func() { p.serve(c) })
	}
}

// serve forwards one connection.
func (p *Proxy) serve(down net.Conn) {
	defer p.track(down)()
	r := bufio.NewReaderSize(down, 64<<10)
	p.announce(r)
	p.wait()
	if p.wasCut(down) {
		return // do not forward what it sent before
	}
	up, err := net.Dial("unix", p.engine) //nolint:noctx // a local socket answers at once
	if err != nil {
		return
	}
	defer p.track(up)()
	var both sync.WaitGroup
	both.Go(func() { p.forward(up, r) })
	p.forward(down, up)
	both.Wait()
}

// track registers a connection and returns a function that closes it.
func (p *Proxy) track(c net.Conn) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
	}
	p.conns = append(p.conns, c)
	return func() {
		_ = c.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conns = slices.DeleteFunc(p.conns, func(have net.Conn) bool { return have == c })
	}
}

// wasCut reports whether a connection was closed by Cut.
func (p *Proxy) wasCut(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.Contains(p.conns, c)
}

// announce calls the function that Before was given.
func (p *Proxy) announce(r *bufio.Reader) {
	p.mu.Lock()
	seen := p.seen
	p.mu.Unlock()
	if seen == nil {
		return
	}
	for n := 1; n <= r.Size(); n++ {
		sent, err := r.Peek(max(n, r.Buffered()))
		if req := whole(sent); req != nil || err != nil {
			if req != nil {
				seen(req.Method, req.URL.RequestURI())
			}
			return
		}
		n = len(sent)
	}
}

// whole returns the request that was sent, or nil if it is incomplete: the engine ignores an
// incomplete request whose client has disconnected. A request without a length is complete with
// its header.
func whole(sent []byte) *http.Request {
	req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(sent)))
	if err != nil {
		return nil
	}
	if n, _ := io.Copy(io.Discard, req.Body); n < req.ContentLength {
		return nil
	}
	return req
}

// wait waits until the proxy forwards.
func (p *Proxy) wait() {
	for {
		p.mu.Lock()
		hung, resume := p.hung, p.resume
		p.mu.Unlock()
		if !hung {
			return
		}
		<-resume
	}
}

// forward copies one direction and passes on EOF.
func (p *Proxy) forward(to net.Conn, from io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.wait()
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				break
			}
		}
		if errors.Is(err, io.EOF) {
			if half, ok := to.(*net.UnixConn); ok && half.CloseWrite() == nil {
				return
			}
		}
		if err != nil {
			break
		}
	}
	_ = to.Close()
	if c, ok := from.(net.Conn); ok {
		_ = c.Close()
	}
}
