package guest

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

// writesConn counts the writes.
type writesConn struct {
	net.Conn
	mu     sync.Mutex
	writes int
}

func (c *writesConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.writes++
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *writesConn) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

// servedBy connects to a guest whose writes are counted.
func servedBy(t *testing.T) (*Sandbox, *writesConn) {
	t.Helper()
	here, there := net.Pipe()
	conn := &writesConn{Conn: there}
	served := make(chan error, 1)
	go func() {
		served <- Serve(context.WithoutCancel(t.Context()), conn, newFake(t), ServeConfig{KeepAlive: -1})
	}()
	client, err := Dial(t.Context(), here, Config{KeepAlive: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		if err := within(t, served); err != nil {
			t.Error(err)
		}
	})
	return client, conn
}

func TestAnAnswerTakesTheRestAlong(t *testing.T) {
	client, conn := servedBy(t)
	before := conn.count()
	const operations = 200
	for range operations {
		if _, err := client.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// Each operation would take three writes: the stream is accepted, the answer, and its end.
	// A late frame goes alone if the machine is busy.
	if got := conn.count() - before; got >= 2*operations {
		t.Errorf("%d operations are %d writes", operations, got)
	}
}

func TestADeferredWriteGoesAlone(t *testing.T) {
	here, there := net.Pipe()
	p := newDeferredWriter(there)
	got, read := make([]byte, len("onetwo")), make(chan error, 1)
	go func() { // deferTime may end between the two: then the first must be read before the second
		_, err := io.ReadFull(here, got)
		read <- err
	}()
	for _, text := range []string{"one", "two"} {
		if n, err := p.WriteLater([]byte(text)); err != nil || n != len(text) {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if err := within(t, read); err != nil || string(got) != "onetwo" {
		t.Errorf("%q, %v", got, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.WriteLater([]byte("late")); err != nil {
		t.Error(err)
	}
	p.flush()                                    // as the timer may, after Close
	if _, err := here.Read(got); err != io.EOF { //nolint:errorlint // a pipe's own
		t.Errorf("after the end: %v", err)
	}
}

func TestADeferredWriteGoesBeforeLaterOnes(t *testing.T) {
	for name, body := range map[string]string{"small": "body", "large": strings.Repeat("body", smallBody)} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			p := newDeferredWriter(there)
			all := make(chan []byte, 1)
			go func() {
				b, _ := io.ReadAll(here)
				all <- b
			}()
			for _, write := range []func([]byte) (int, error){p.WriteLater, p.Write} {
				if _, err := write([]byte(body)); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if got := <-all; string(got) != body+body {
				t.Errorf("%d bytes arrived", len(got))
			}
		})
	}
}

func TestTheNextWriteReturnsALateError(t *testing.T) {
	here, there := net.Pipe()
	p := newDeferredWriter(there)
	if err := here.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.WriteLater(bytes.Repeat([]byte{1}, maxDeferred)); err == nil {
		t.Error("a full buffer is kept")
	}
	if _, err := p.Write([]byte("x")); err == nil {
		t.Error("the next write says nothing")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestALargeFileDoesNotWaitForPatience(t *testing.T) {
	client, _ := servedBy(t)
	content := bytes.Repeat([]byte("large"), 1<<20)
	if err := client.WriteFile(t.Context(), "large", bytes.NewReader(content), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := primitives.ReadFile(t.Context(), client, "large", int64(len(content)))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
