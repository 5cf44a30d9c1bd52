package testport_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testport"
)

func TestAServerListensAtAHeldPortAgainAndAgain(t *testing.T) {
	t.Parallel()
	address, release := testport.Hold(t)
	defer release()
	if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("before there is a server: %v, %v", conn, err)
	}
	for range 2 {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(conn.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}
