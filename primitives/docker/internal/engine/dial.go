package engine

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/docker/docker/api/types"
)

// dialer connects to an engine.
type dialer func(ctx context.Context) (net.Conn, error)

// dialTimeout is how long connecting may take.
const dialTimeout = 10 * time.Second

func dialUnix(socket string) dialer {
	return func(ctx context.Context) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout}
		return d.DialContext(ctx, "unix", socket)
	}
}

func dialTCP(address string) dialer {
	return func(ctx context.Context) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
		return d.DialContext(ctx, "tcp", address)
	}
}

func dialTLS(plain dialer, config *tls.Config) dialer {
	return func(ctx context.Context) (net.Conn, error) {
		conn, err := plain(ctx)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return &tlsConn{secure}, nil
	}
}

// tlsConn is a connection whose failed writes return the engine's reason. With TLS 1.3 an engine
// refuses a certificate after the handshake is complete on this side: the transport, which reads
// and writes at once, then closes the connection, and may return the error of the write.
type tlsConn struct{ *tls.Conn }

func (c *tlsConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		if _, said := c.Read(make([]byte, 1)); isRefusal(said) {
			return n, said
		}
	}
	return n, err
}

// isRefusal reports whether err is a TLS alert with which the engine ended the connection.
func isRefusal(err error) bool {
	connection, ok := errors.AsType[*net.OpError](err)
	return ok && connection.Op == "remote error"
}

// certificates is a folder with ca.pem, cert.pem and key.pem, as the docker command uses it. Each
// file may be missing.
type certificates struct {
	dir      string // empty: the system's authorities and no certificate
	insecure bool   // do not verify the engine's certificate
}

// config reads the certificates.
func (c *certificates) config(server string) (*tls.Config, error) {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: server,
		InsecureSkipVerify: c.insecure, // the user has asked for it
	}
	if c.dir == "" {
		return config, nil
	}
	file := func(name string) string { return filepath.Join(c.dir, name) }
	pem, err := os.ReadFile(file("ca.pem"))
	switch {
	case err == nil:
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: %s holds no certificate of an authority; put the one there that signed the engine's", fs.ErrInvalid, file("ca.pem"))
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	own, err := tls.LoadX509KeyPair(file("cert.pem"), file("key.pem"))
	switch {
	case err == nil:
		config.Certificates = []tls.Certificate{own}
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, fs.ErrPermission):
		return nil, err
	default:
		return nil, fmt.Errorf("%w: cert.pem and key.pem in %s: %w; replace them", fs.ErrInvalid, c.dir, err)
	}
	return config, nil
}

// Hijack calls a method of the engine's client that takes over its connection. Unlike the client it
// returns when ctx is done while it waits for the engine's answer.
func Hijack(ctx context.Context, call func(context.Context) (types.HijackedResponse, error)) (types.HijackedResponse, error) {
	g := &connGuard{}
	stop := context.AfterFunc(ctx, g.end)
	h, err := call(context.WithValue(ctx, connGuardKey{}, g))
	if stop() {
		return h, err
	}
	if err == nil {
		h.Close()
	}
	return types.HijackedResponse{}, ctx.Err()
}

// connGuard closes the connection of a call when the call's context ends.
type connGuard struct {
	mu    sync.Mutex
	conn  net.Conn
	ended bool
}

type connGuardKey struct{}

// answerTimeout is how long an engine may take for its first answer. Most callers set no deadline,
// and another program may listen at the engine's address.
const answerTimeout = 30 * time.Second

// guarded returns a dialer that registers its connections with Hijack, and does not wait forever
// for an engine that never answers.
func guarded(dial dialer, timeout time.Duration) func(context.Context, string, string) (net.Conn, error) {
	var answered atomic.Bool
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		if !answered.Load() {
			first := &firstConn{Conn: conn, answered: &answered}
			first.timer = time.AfterFunc(timeout, first.giveUp)
			conn = first
		}
		if g, ok := ctx.Value(connGuardKey{}).(*connGuard); ok {
			g.hold(conn)
		}
		return conn, nil
	}
}

// firstConn is a connection to an engine that has not answered yet. The client asks for the
// engine's version on it, and never takes over such a connection. A connection through ssh supports
// no deadlines, so a timer closes it.
type firstConn struct {
	net.Conn
	answered *atomic.Bool
	timer    *time.Timer
	silent   atomic.Bool
}

func (c *firstConn) giveUp() {
	c.silent.Store(true)
	_ = c.Conn.Close()
}

func (c *firstConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch {
	case n > 0:
		c.timer.Stop()
		c.answered.Store(true)
	case c.silent.Load():
		err = ErrSilent
	}
	return n, err
}

// Write returns ErrSilent, too, when giveUp has closed the connection: the transport reads and
// writes at once, and returns the error of either.
func (c *firstConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && c.silent.Load() {
		err = ErrSilent
	}
	return n, err
}

func (c *firstConn) Close() error {
	c.timer.Stop()
	return c.Conn.Close()
}

func (g *connGuard) hold(conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conn = conn
	if g.ended {
		_ = conn.Close()
	}
}

func (g *connGuard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	if g.conn != nil {
		_ = g.conn.Close()
	}
}
