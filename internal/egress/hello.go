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

// maxHello is the maximum size in bytes of a TLS client's first message.
const maxHello = 80 << 10

// HelloError is the error for a client that does not start TLS with the allowed host.
type HelloError struct {
	// Why is the reason, as text for users.
	Why string
	// Plain means that the data is not TLS at all.
	Plain bool
}

func (e *HelloError) Error() string { return e.Why }

// CheckHello reads the TLS ClientHello and checks that it names the target's host, or no host
// if the target is an address. It returns all bytes that it has read, for the caller to send
// on. Otherwise the error is a [*HelloError] for the client's data, or an error of r.
func CheckHello(ctx context.Context, r io.Reader, t Target) ([]byte, error) {
	var read bytes.Buffer
	var name *string
	source := &helloConn{r: io.TeeReader(io.LimitReader(r, maxHello), &read)}
	// The server stops after the ClientHello, and its output is discarded.
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
		return nil, io.EOF // the client disconnected
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

// recordHandshake is the type of a TLS handshake record, the first byte of a TLS stream.
const recordHandshake = 22

// UnrecognizedName is the TLS alert for a client whose ClientHello is refused.
var UnrecognizedName = []byte{21, 3, 1, 0, 2, 2, 112}

var errParsed = errors.New("the ClientHello is read")

// helloConn is a read-only connection for the TLS server.
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
