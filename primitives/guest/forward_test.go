package guest_test

import (
	"context"
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// TestConnections runs package nettest on a dialed and an accepted connection.
func TestConnections(t *testing.T) {
	engine, err := local.New(t.Context(), local.Config{Root: t.TempDir()})
	p, err := serveLocal(t.Context(), guest.Config{}, engine, err)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := p.Terminate(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	ln, err := primitives.Listen(t.Context(), p, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	nettest.TestConn(t, func() (dialed, accepted net.Conn, stop func(), err error) {
		if dialed, err = primitives.Dial(t.Context(), p, "tcp", ln.Addr().String()); err != nil {
			return nil, nil, nil, err
		}
		if accepted, err = ln.Accept(); err != nil {
			return nil, nil, nil, err
		}
		return dialed, accepted, func() { _, _ = dialed.Close(), accepted.Close() }, nil
	})
}
