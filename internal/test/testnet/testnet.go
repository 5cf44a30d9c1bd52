// Package testnet provides addresses for the servers of tests.
package testnet

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
)

// FreeAddress returns a TCP address of this machine on which nothing listens. Until the test
// ends, Linux does not assign its port to sockets that ask for any free port.
func FreeAddress(t testing.TB) string {
	t.Helper()
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	// The socket is bound but does not listen. Another socket with this option can listen on
	// the address, on Linux.
	if runtime.GOOS == "linux" {
		t.Cleanup(func() { _ = syscall.Close(fd) })
	} else {
		defer func() { _ = syscall.Close(fd) }()
	}
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	bound, nerr := syscall.Getsockname(fd)
	if err := errors.Join(err, nerr); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
}
