package agenttest

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// ReserveAddress returns an address of the loopback interface whose port no other program gets before
// the test ends. Nothing listens there until the test does, and nothing listens there any more when the
// test has closed its listener: a connection is refused.
func ReserveAddress(t testing.TB) string {
	t.Helper()
	// A socket that is bound and does not listen keeps the port. A listener can use the port, too, because
	// package net sets the same option.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.CloseOnExec(fd)
	t.Cleanup(func() { _ = unix.Close(fd) })
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
	)
	if err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	own, ok := bound.(*unix.SockaddrInet4)
	if !ok {
		t.Fatalf("the socket has the address %+v", bound)
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(own.Addr), uint16(own.Port))).String()
}
