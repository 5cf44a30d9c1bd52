package guest

import (
	"net"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// lazyConn counts the writes, and keeps the bytes of WriteLater until the next Write.
type lazyConn struct {
	net.Conn
	mu     sync.Mutex
	writes int
	late   []byte
}

func (c *lazyConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	if _, err := c.Conn.Write(append(c.late, p...)); err != nil {
		return 0, err
	}
	c.late = nil
	return len(p), nil
}

func (c *lazyConn) WriteLater(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = append(c.late, p...)
	return len(p), nil
}

func (c *lazyConn) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

func TestAnOperationIsOneWriteOnAStreamWhereWritesCostMuch(t *testing.T) {
	here, there := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(t.Context(), there, newFake(t), ServeConfig{KeepAlive: -1}) }()
	conn := &lazyConn{Conn: here}
	client, err := Dial(t.Context(), conn, Config{KeepAlive: -1})
	if err != nil {
		t.Fatal(err)
	}
	if n := conn.count(); n != 0 {
		t.Errorf("the handshake, which the first operation takes along, is %d writes", n)
	}
	before := conn.count()
	const operations = 20
	for range operations {
		if _, err := client.Stat(t.Context(), "."); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		res, err := client.Run(t.Context(), primitives.Command{Args: []string{"true"}}, primitives.RunOptions{})
		if err != nil || res.Status.Code != 0 {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	if got := conn.count() - before; got != 3*operations {
		t.Errorf("%d operations are %d writes", 3*operations, got)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if err := within(t, served); err != nil {
		t.Error(err)
	}
}
