// Package testport keeps TCP ports for the servers that tests start.
package testport

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
)

// Hold returns an address of the loopback interface at which nothing listens, for a server that sets SO_REUSEADDR, as
// most do. On Linux no other program that asks for any free port gets this one until release is called: neither before
// the server listens nor while it is stopped.
func Hold(t testing.TB) (address string, release func()) {
	t.Helper()
	socket, port, err := bind()
	if err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	release = func() {
		if err := syscall.Close(socket); err != nil {
			t.Errorf("release port %d: %v", port, err)
		}
	}
	if runtime.GOOS != "linux" { // others let nothing listen at a port that is bound
		release()
		release = func() {}
	}
	return fmt.Sprintf("127.0.0.1:%d", port), release
}

// bind returns a socket that is bound to a free port and does not listen.
func bind() (socket, port int, err error) {
	syscall.ForkLock.RLock() // no child may get the socket
	socket, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, 0, os.NewSyscallError("socket", err)
	}
	err = errors.Join(
		os.NewSyscallError("setsockopt", syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)),
		os.NewSyscallError("bind", syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})),
	)
	bound, gerr := syscall.Getsockname(socket)
	at, ok := bound.(*syscall.SockaddrInet4)
	if err = errors.Join(err, os.NewSyscallError("getsockname", gerr)); err == nil && !ok {
		err = fmt.Errorf("the socket is bound to %T", bound)
	}
	if err != nil {
		return 0, 0, errors.Join(err, syscall.Close(socket))
	}
	return socket, at.Port, nil
}
