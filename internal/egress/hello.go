package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// maxHello is how much is read of what a TLS client says first, in bytes.
const maxHello = 80 << 10

// HelloError says that a client does not begin TLS with the host that was allowed.
type HelloError struct {
	// Why is for people.
	Why string
	// Plain says that what came is not TLS at all.
	Plain bool
}

func (e *HelloError) Error() string { return e.Why }

// CheckHello reads the ClientHello of TLS and checks that it names the target's host, or
// none where that is an address. It returns all that it has read, which the caller sends on.
// A client that does otherwise is a [*HelloError]; other errors are those of r.
func CheckHello(ctx context.Context, r io.Reader, t Target) ([]byte, error) {
	var read bytes.Buffer
	var name *string
	source := &helloConn{r: io.TeeReader(io.LimitReader(r, maxHello), &read)}
	// The server gets no further than the ClientHello, and what it would say goes nowhere.
	err := tls.Server(source, &tls.Config{MinVersion: tls.VersionTLS10, GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) { //nolint:gosec // it is the target's choice
		name = &hello.ServerName
		return nil, errParsed
	}}).HandshakeContext(ctx)
	switch {
	case name == nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case name == nil && source.err != nil && !errors.Is(source.err, io.EOF):
		return nil, source.err
	case name == nil && read.Len() == 0:
		return nil, io.EOF // the client has gone
	case name == nil && read.Len() > 0 && read.Bytes()[0] != recordHandshake:
		return nil, &HelloError{"what is sent through the tunnel is not TLS; only TLS is passed on there", true}
	case name == nil:
		return nil, &HelloError{fmt.Sprintf("the TLS client's first message cannot be read: %v", err), false}
	case *name == "" && t.IsAddress():
	case *name == "":
		return nil, &HelloError{"the TLS client does not say which host it asks for (SNI)", false}
	case !strings.EqualFold(*name, t.Host):
		return nil, &HelloError{fmt.Sprintf("the TLS client asks for the host %q (SNI) in a tunnel to %s", *name, t), false}
	}
	return read.Bytes(), nil
}

// recordHandshake is the first byte of TLS.
const recordHandshake = 22

// UnrecognizedName is what a TLS client is told whose ClientHello is refused.
var UnrecognizedName = []byte{21, 3, 1, 0, 2, 2, 112}

var errParsed = errors.New("the ClientHello is read")

// helloConn is a connection of which a server reads.
type helloConn struct {
	r   io.Reader
	err error
}

func (c *helloConn) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil {
		c.err = err
	}
	return n, err
}

func (*helloConn) Write(p []byte) (int, error)      { return len(p), nil }
func (*helloConn) Close() error                     { return nil }
func (*helloConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*helloConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*helloConn) SetDeadline(time.Time) error      { return nil }
func (*helloConn) SetReadDeadline(time.Time) error  { return nil }
func (*helloConn) SetWriteDeadline(time.Time) error { return nil }
