package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// freezer is a connection that can be frozen without being closed.
type freezer struct {
	net.Conn
	mu     sync.Mutex
	thawed chan struct{} // nil if the connection is not frozen
}

func (f *freezer) freeze() {
	f.mu.Lock()
	f.thawed = make(chan struct{})
	f.mu.Unlock()
}

func (f *freezer) thaw() {
	f.mu.Lock()
	close(f.thawed)
	f.thawed = nil
	f.mu.Unlock()
}

func (f *freezer) wait() {
	f.mu.Lock()
	thawed := f.thawed
	f.mu.Unlock()
	if thawed != nil {
		<-thawed
	}
}

func (f *freezer) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	f.wait()
	return n, err
}

func (f *freezer) Write(p []byte) (int, error) {
	f.wait()
	return f.Conn.Write(p)
}

// frozen serves a fake over a connection that can be frozen.
func frozen(t *testing.T, every time.Duration) (*Sandbox, *freezer) {
	t.Helper()
	host, guest := net.Pipe()
	way := &freezer{Conn: guest}
	served := make(chan error, 1)
	go func() {
		served <- Serve(context.WithoutCancel(t.Context()), way, newFake(t), ServeConfig{KeepAlive: -1})
	}()
	c, err := Dial(t.Context(), host, Config{KeepAlive: every})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		within(t, served)
	})
	return c, way
}

func TestAPausedGuestIsNotLost(t *testing.T) {
	const every = time.Second // long enough for a busy machine to answer before and after
	c, way := frozen(t, every)
	p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	c.setPaused(true)
	way.freeze()
	if _, err := c.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Stat of a paused sandbox: %v", err)
	}
	if err := p.Signal(t.Context(), "TERM"); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Signal in a paused sandbox: %v", err)
	}
	select {
	case <-c.Done():
		t.Fatal("the guest is lost")
	case <-time.After(3 * every): // a loss would happen after twice that
	}
	way.thaw()
	c.setPaused(false)
	if _, err := io.WriteString(p.Stdin(), "still here"); err != nil {
		t.Error(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Error(err)
	}
	if out, err := io.ReadAll(p.Stdout()); string(out) != "still here" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestAGuestThatStopsBehindOurBackIsLost(t *testing.T) {
	c, way := frozen(t, 40*time.Millisecond)
	way.freeze()
	defer way.thaw()
	if _, err := c.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Stat: %v", err)
	}
	within(t, c.Done())
}

func TestAGuestThatDoesNotComeBackIsLost(t *testing.T) {
	c, way := frozen(t, 40*time.Millisecond)
	c.setPaused(true)
	way.freeze()
	defer way.thaw()
	c.setPaused(false)
	within(t, c.Done())
}

func TestClosingAPausedSandboxDoesNotWaitForIt(t *testing.T) {
	c, way := frozen(t, 0)
	p, err := c.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	c.setPaused(true)
	way.freeze()
	done := make(chan error, 1)
	go func() { done <- c.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(byeTimeout): // if Close waits, it waits longer: also for the command's grace period
		t.Error("Close waits")
	}
	way.thaw()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
