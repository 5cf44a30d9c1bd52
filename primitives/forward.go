package primitives

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"strings"
)

// Forwarder is implemented by primitives that carry connections into and out of their
// sandboxes. Call [Listen] and [Dial].
type Forwarder interface {
	// Listen does what the function [Listen] promises.
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	// Dial does what the function [Dial] promises.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Listen accepts connections that are made inside the sandbox to address, as net.Listen
// does on a machine: "tcp" with "127.0.0.1:0", or "unix" with the path of a socket, which
// may be relative to the workspace. The address is taken when Listen returns;
// ctx covers that only. Addr of the listener says which port it is.
//
// The listener ends with its Close, with the sandbox, and with the handle p. A Unix socket
// is removed with it. Connections that have been accepted live on after a Close of the listener.
// In a sandbox with a guest a connection that nobody accepts is reset after 30 seconds.
//
// Errors: those of [Dial], and syscall.EADDRINUSE.
func Listen(ctx context.Context, p EnvironmentPrimitive, network, address string) (net.Listener, error) {
	if err := CheckEndpoint(network, address); err != nil {
		return nil, &Error{Op: "listen", Target: address, Err: err}
	}
	if f, ok := p.(Forwarder); ok {
		return f.Listen(ctx, network, address)
	}
	return nil, &Error{Op: "listen", Target: address, Err: errors.ErrUnsupported}
}

// Dial connects to what listens on address inside the sandbox, as a program there would:
// "tcp" with "127.0.0.1:8080" or "localhost:8080", or "unix" with the path of a socket, which may be relative to
// the workspace. ctx covers the connecting only.
//
// The connection has the method CloseWrite, as *net.TCPConn has: the other end reads io.EOF
// after the data. On a port it also has SetLinger: with zero, Close resets it. When a
// process inside resets it, or the sandbox or the handle p ends, reading fails with another error
// than io.EOF; what is written to it may be lost without one. In a sandbox with a guest what a
// process has not read 30 seconds after Close is lost, and the connection is reset.
//
// Errors: fs.ErrInvalid for another network or a malformed address, syscall.ECONNREFUSED
// where nobody listens, [ErrLimit] for more connections than a handle of a guest carries at once, which are 512
// with those accepted. A sandbox that cannot do it is errors.ErrUnsupported, see Capabilities.Forward.
func Dial(ctx context.Context, p EnvironmentPrimitive, network, address string) (net.Conn, error) {
	if err := CheckEndpoint(network, address); err != nil {
		return nil, &Error{Op: "dial", Target: address, Err: err}
	}
	if f, ok := p.(Forwarder); ok {
		return f.Dial(ctx, network, address)
	}
	return nil, &Error{Op: "dial", Target: address, Err: errors.ErrUnsupported}
}

// CheckEndpoint says what is wrong with the arguments of [Listen] and [Dial], which is fs.ErrInvalid.
func CheckEndpoint(network, address string) error {
	switch network {
	case "tcp":
		_, port, err := net.SplitHostPort(address)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return fmt.Errorf("%w: %w; write it as 127.0.0.1:8080", fs.ErrInvalid, err)
		}
		return nil
	case "unix":
		if address == "" || strings.IndexByte(address, 0) >= 0 {
			return fmt.Errorf("%w: %q is not the path of a socket", fs.ErrInvalid, address)
		}
		return nil
	}
	return fmt.Errorf("%w: network %q; it is tcp or unix", fs.ErrInvalid, network)
}
