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

// Forwarder is implemented by primitives that forward connections into and out of their
// sandboxes. Call [Listen] and [Dial].
type Forwarder interface {
	// Listen does what the function [Listen] promises.
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	// Dial does what the function [Dial] promises.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// Listen accepts connections to address that programs in the sandbox make, as net.Listen does
// on a machine: "tcp" with "127.0.0.1:0", or "unix" with the path of a socket, which may be
// relative to the workspace. The address is bound when Listen returns; ctx covers only that.
// The listener's Addr returns the actual port.
//
// The listener ends with its Close, with the sandbox, and with the handle p. A Unix socket is
// then removed. Accepted connections outlive the Close of the listener. In a sandbox with a
// guest, a connection that nobody accepts is reset after 30 seconds.
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

// Dial connects to an address inside the sandbox, as a program there would: "tcp" with
// "127.0.0.1:8080" or "localhost:8080", or "unix" with the path of a socket, which may be
// relative to the workspace. ctx covers only connecting.
//
// The connection has the method CloseWrite, as *net.TCPConn has: the peer reads io.EOF after
// the data. A TCP connection also has SetLinger: with zero, Close resets the connection. When a
// process in the sandbox resets the connection, or the sandbox or the handle p ends, reading
// fails with an error other than io.EOF; written data may be lost without an error. In a
// sandbox with a guest, data that a process has not read 30 seconds after Close is lost, and
// the connection is reset.
//
// Errors: fs.ErrInvalid for another network or a malformed address, syscall.ECONNREFUSED if
// nothing listens on the address, [ErrLimit] for more connections than a handle with a guest
// forwards at once: 512, including accepted ones. A sandbox that does not support forwarding
// returns errors.ErrUnsupported; see Capabilities.Forward.
func Dial(ctx context.Context, p EnvironmentPrimitive, network, address string) (net.Conn, error) {
	if err := CheckEndpoint(network, address); err != nil {
		return nil, &Error{Op: "dial", Target: address, Err: err}
	}
	if f, ok := p.(Forwarder); ok {
		return f.Dial(ctx, network, address)
	}
	return nil, &Error{Op: "dial", Target: address, Err: errors.ErrUnsupported}
}

// CheckEndpoint returns fs.ErrInvalid if the arguments of [Listen] and [Dial] are wrong.
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
