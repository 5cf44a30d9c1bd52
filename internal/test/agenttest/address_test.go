package agenttest

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

func TestAReservedAddressRefusesConnectionsUnlessTheTestListens(t *testing.T) {
	address := ReserveAddress(t)
	refused := func() {
		t.Helper()
		if conn, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the connection is %v, %v", conn, err)
		}
	}
	refused()
	for range 2 {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(conn.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
		refused()
	}
}
