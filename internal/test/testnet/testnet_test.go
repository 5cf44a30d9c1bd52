package testnet_test

import (
	"net"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testnet"
)

func TestAServerCanListenAtAFreeAddressAgainAndAgain(t *testing.T) {
	address := testnet.FreeAddress(t)
	for range 3 {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			t.Fatal("something listens there")
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
