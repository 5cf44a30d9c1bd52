package guest

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// pausable is a driver of a served fake that detects calls at the wrong time.
type pausable struct {
	conn  net.Conn
	ended atomic.Int32 // calls of End
	// meanwhile is called at the beginning of Terminate and of the first Pause. It may block
	// until they return, so the driver waits only briefly for it.
	meanwhile func()

	mu     sync.Mutex
	closed bool
	inside int // calls of Pause and Resume in progress
	wrong  string
}

func (d *pausable) ID() string                                       { return "pausable" }
func (d *pausable) Dial(context.Context) (io.ReadWriteCloser, error) { return d.conn, nil }

func (d *pausable) State(context.Context) (Status, error) {
	return Status{State: primitives.State{Status: primitives.StatusRunning}}, nil
}

func (d *pausable) End(context.Context) error {
	d.ended.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		d.wrong = "End after Close"
	}
	return nil
}

func (d *pausable) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// BeginEnd runs meanwhile.
func (d *pausable) BeginEnd(context.Context) func(func() bool) {
	d.tempt()
	return func(func() bool) {}
}

// tempt starts meanwhile and waits briefly for it to return.
func (d *pausable) tempt() {
	if d.meanwhile == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.meanwhile()
	}()
	select {
	case <-done:
	case <-time.After(50 * time.Millisecond): // it blocks, as it should
	}
}

func (d *pausable) Pause(context.Context) error {
	defer d.enter()()
	d.tempt()
	return nil
}

func (d *pausable) Resume(context.Context) error {
	defer d.enter()()
	return nil
}

func (d *pausable) enter() (leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inside++
	switch {
	case d.closed:
		d.wrong = "Pause or Resume after Close"
	case d.inside > 1:
		d.wrong = "Pause and Resume at the same time"
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.inside--
	}
}

func (d *pausable) mistake() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wrong
}

// openPausable serves a fake to a Sandbox over the driver.
func openPausable(t *testing.T) (*Sandbox, *pausable) {
	t.Helper()
	host, inside := net.Pipe()
	served := make(chan error, 1)
	f := newFake(t)
	go func() { served <- Serve(context.WithoutCancel(t.Context()), inside, f, ServeConfig{}) }()
	d := &pausable{conn: host}
	s, err := Open(t.Context(), d, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		within(t, served)
	})
	return s, d
}

func TestCloseWaitsForTerminate(t *testing.T) {
	s, d := openPausable(t)
	var closing sync.WaitGroup
	closing.Add(1)
	d.meanwhile = sync.OnceFunc(func() {
		defer closing.Done()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.Terminate(t.Context()); err != nil || d.ended.Load() == 0 {
		t.Errorf("Terminate: %v, the driver was asked %d times to end the sandbox", err, d.ended.Load())
	}
	closing.Wait()
	if _, err := s.Terminate(t.Context()); !errors.Is(err, primitives.ErrUnavailable) {
		t.Errorf("Terminate of a closed sandbox: %v", err)
	}
	if wrong := d.mistake(); wrong != "" {
		t.Error(wrong)
	}
}

func TestTerminateWaitsForPause(t *testing.T) {
	s, d := openPausable(t)
	var ending sync.WaitGroup
	ending.Add(1)
	d.meanwhile = sync.OnceFunc(func() {
		defer ending.Done()
		if _, err := s.Terminate(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if err := s.Pause(t.Context()); err != nil {
		t.Error(err)
	}
	ending.Wait()
	if wrong := d.mistake(); wrong != "" {
		t.Error(wrong)
	}
}

// tardy is a fake whose commands report their exit late.
type tardy struct{ *fake }

func (f tardy) Exec(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
	p, err := f.fake.Exec(ctx, cmd)
	return tardyProcess{p}, err
}

func (f tardy) Terminate(ctx context.Context) (primitives.TerminateReport, error) {
	f.mu.Lock()
	procs := slices.Collect(maps.Keys(f.procs))
	f.mu.Unlock()
	for _, p := range procs {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		<-p.done
	}
	return f.fake.Terminate(ctx)
}

type tardyProcess struct{ primitives.Process }

func (p tardyProcess) Wait(ctx context.Context) (primitives.ExitStatus, error) {
	status, err := p.Process.Wait(ctx)
	<-time.After(50 * time.Millisecond)
	return status, err
}

// cutting is a driver whose End cuts the stream.
type cutting struct{ *pausable }

func (d cutting) End(ctx context.Context) error {
	return errors.Join(d.conn.Close(), d.pausable.End(ctx))
}

func TestTerminateWaitsForTheStatusOfCommands(t *testing.T) {
	host, guest := net.Pipe()
	var serving sync.WaitGroup
	serving.Go(func() { _ = Serve(context.WithoutCancel(t.Context()), guest, tardy{newFake(t)}, ServeConfig{}) })
	defer serving.Wait()
	s, err := Open(t.Context(), cutting{&pausable{conn: host}}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(p.Stdout(), make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(t.Context()); err != nil || status.Code != 3 {
		t.Errorf("Wait: %+v, %v", status, err)
	}
	_ = p.Close()
}

func TestASandboxThatEndsWhileItIsPausedIsNoLongerPaused(t *testing.T) {
	ended := errors.New("ended")
	states := []Status{
		{State: primitives.State{Status: primitives.StatusPaused}},
		{State: primitives.State{Status: primitives.StatusExited}, Cause: ended},
	}
	c := &Sandbox{driver: &pausable{}, state: func() (Status, error) {
		now := states[0]
		states = states[1:]
		return now, nil
	}}
	for i, want := range []error{errPausedAway, ended, ended} {
		if got := c.endCause(); !errors.Is(got, want) {
			t.Errorf("question %d: %v, want %v", i+1, got, want)
		}
	}
}
