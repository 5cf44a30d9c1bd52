package docker_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// advisesAnEngine reports whether an error advises to start the engine.
func advisesAnEngine(err error) bool {
	return err != nil && strings.Contains(err.Error(), "start the Docker engine")
}

// TestAttachToASandboxThatIsJustEnding ends the sandbox between the requests of Attach.
func TestAttachToASandboxThatIsJustEnding(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"/exec", "/start"} {
		for _, keep := range []bool{false, true} {
			name := "before " + at
			if keep {
				name += ", kept"
			}
			t.Run(name, func(t *testing.T) {
				cfg := config(t, testdocker.Busybox(t))
				cfg.Keep = keep
				eng, s := testdocker.Engine(t), open(t, cfg)
				p := testdocker.NewProxy(t)
				var once sync.Once
				p.Before(func(_, path string) {
					if strings.HasSuffix(path, at) {
						once.Do(func() { endNow(t, eng, s.ID()) })
					}
				})
				cfg.Host = p.Host()
				other, err := docker.Attach(t.Context(), cfg, s.ID())
				if err == nil {
					t.Fatal("attached", other.Close())
				}
				gone := errors.Is(err, fs.ErrNotExist)
				ended := errors.Is(err, primitives.ErrUnavailable) && errors.Is(err, os.ErrProcessDone)
				if keep && !ended || !gone && !ended || errors.Is(err, fs.ErrExist) || advisesAnEngine(err) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// An engine remembers its last 256 events. An end with a grace period takes longer than a busy
// engine needs to produce that many.
func TestTheEndIsKnownOnABusyEngine(t *testing.T) {
	for grace := 3 * time.Second; !endsBusily(t, grace); grace *= 4 {
		if grace > time.Minute {
			t.Fatal("the engine is too slow for so many events")
		}
	}
}

// endsBusily keeps the engine busy while a sandbox ends, and reports whether that work was
// done before the end.
func endsBusily(t *testing.T, grace time.Duration) bool {
	t.Helper()
	cfg := config(t, testdocker.Busybox(t))
	s, busy := open(t, cfg), open(t, cfg)
	p, err := s.Exec(t.Context(), primitives.Command{
		Args: []string{"sh", "-c", "trap '' TERM; echo; while true; do sleep 1; done"}, Grace: grace,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := io.ReadFull(p.Stdout(), make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	other, err := docker.Attach(t.Context(), cfg, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	eng := testdocker.Engine(t)
	marks, failed := eng.Events(t.Context(), events.ListOptions{
		Since:   strconv.FormatInt(time.Now().Unix(), 10), // it may answer before it listens
		Filters: filters.NewArgs(filters.Arg("container", s.ID()), filters.Arg("event", string(events.ActionExecCreate))),
	})
	ended := make(chan error, 1)
	go func() {
		_, err := other.Terminate(t.Context())
		ended <- err
	}()
	for marked := false; !marked; {
		select {
		case m := <-marks: // the first may be that of Attach
			marked = strings.HasSuffix(string(m.Action), " terminate")
		case err := <-failed:
			t.Fatal(err)
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			return false // the mark is late
		}
	}
	for range 260 {
		if _, err := eng.ContainerExecCreate(t.Context(), busy.ID(), container.ExecOptions{Cmd: []string{"true"}}); err != nil {
			t.Fatal(err)
		}
	}
	inTime := len(ended) == 0
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !inTime {
		return false // events after the end do not count
	}
	if _, err := s.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("got %v", err)
	}
	return true
}

// endNow ends a container and waits until it has ended.
func endNow(t *testing.T, eng *client.Client, id string) {
	if err := eng.ContainerKill(context.WithoutCancel(t.Context()), id, "KILL"); err != nil {
		t.Error(err)
	}
	for running := true; running && t.Context().Err() == nil; {
		found, err := eng.ContainerInspect(t.Context(), id)
		running = err == nil && found.State.Running
	}
}

func TestARunnerThatIsNoGuest(t *testing.T) {
	t.Parallel()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(t, testdocker.Busybox(t))
	cfg.Runner = busybox
	s, err := docker.New(t.Context(), cfg)
	if err == nil {
		t.Fatal("no error", s.Close())
	}
	if !errors.Is(err, primitives.ErrUnavailable) || advisesAnEngine(err) {
		t.Errorf("got %v", err)
	}
}

// TestRemoveEndsASandboxThatRefusesGuests fills the sandbox with processes, so that no second guest
// can start.
func TestRemoveEndsASandboxThatRefusesGuests(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Pids = 64
	s := open(t, cfg)
	if res := script(t, s, "while sleep 1000 & do :; done"); res.Status.Success() {
		t.Fatalf("there is room: %+v", res)
	}
	other, err := docker.Attach(t.Context(), cfg, s.ID())
	if err == nil {
		t.Fatal("a second client is attached", other.Close())
	}
	if !errors.Is(err, primitives.ErrUnavailable) || advisesAnEngine(err) {
		t.Errorf("attach: %v", err)
	}
	if err := cfg.Remove(t.Context(), s.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := testdocker.Engine(t).ContainerInspect(t.Context(), s.ID()); !cerrdefs.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// The guest can hardly start anything, not even a thread of its own, but must keep running.
func TestASandboxThatIsFullOfProcessesStaysUsable(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Pids = 64
	s := open(t, cfg)
	if err := s.WriteFile(t.Context(), "kept", strings.NewReader("content"), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Watch(t.Context(), ".", primitives.WatchOptions{}); err != nil { // uses more threads
		t.Fatal(err)
	}
	if res := script(t, s, "while sleep 1000 & do :; done"); res.Status.Success() {
		t.Fatalf("there is room: %+v", res)
	}
	var busy sync.WaitGroup
	for range 16 {
		busy.Go(func() {
			for range 20 {
				if info, err := s.Stat(t.Context(), "kept"); err != nil || info.Size != 7 {
					t.Errorf("the file is %+v, %v", info, err)
					return
				}
				if _, err := primitives.Run(t.Context(), s, primitives.Command{Args: []string{"true"}}, primitives.RunOptions{}); errors.Is(err, primitives.ErrUnavailable) {
					t.Errorf("run: %v", err)
					return
				}
				if _, err := s.List(t.Context(), ".", primitives.ListOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	busy.Wait()
	if state, err := s.Poll(t.Context()); err != nil || !state.Running() {
		t.Errorf("it is %+v, %v", state, err)
	}
	report, err := s.Terminate(t.Context())
	if err != nil || len(report.Survivors) > 0 {
		t.Errorf("got %+v, %v", report, err)
	}
}

// While a container is paused the engine accepts no exec for it.
func TestTheEndOfASandboxPausedByAnotherProgramIsKnown(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Keep = true
	s := open(t, cfg)
	other, err := docker.Attach(t.Context(), cfg, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := primitives.Pause(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Terminate(t.Context()); err != nil {
		t.Error(err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if state, err := s.Poll(t.Context()); err != nil || state.Status != primitives.StatusTerminated {
		t.Errorf("it is %+v, %v", state, err)
	}
}

// A guest that ends by itself is faster than a kill by the engine. The engine still kills it if
// something is open that could be cut off.
func TestTerminateHasTheGuestEndByItself(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		keep, socket bool
		open         bool // a command that was not closed
	}{
		{name: "over stdio"},
		{name: "over a socket", socket: true},
		{name: "kept", keep: true},
		{name: "with an open command", open: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(t, testdocker.Busybox(t))
			cfg.Keep, cfg.NoSocket = tt.keep, !tt.socket
			s, eng := open(t, cfg), testdocker.Engine(t)
			output(t, s, "true")
			if tt.open {
				p, err := s.Exec(t.Context(), primitives.Command{Args: []string{"sleep", "1000"}})
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
			}
			messages, failed := eng.Events(t.Context(), events.ListOptions{
				Since: strconv.FormatInt(time.Now().Unix(), 10), // it may answer before it listens
				Filters: filters.NewArgs(filters.Arg("container", s.ID()), filters.Arg("event", string(events.ActionKill)),
					filters.Arg("event", string(events.ActionDie))),
			})
			began := time.Now()
			if _, err := s.Terminate(t.Context()); err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			if _, err := eng.ContainerInspect(t.Context(), s.ID()); !cerrdefs.IsNotFound(err) {
				t.Errorf("it is still there: %v", err)
			}
			killed, patience := false, time.After(patience)
			for m := (events.Message{}); m.Action != events.ActionDie; {
				select {
				case m = <-messages:
					killed = killed || m.Action == events.ActionKill
				case err := <-failed:
					t.Fatal(err)
				case <-patience:
					t.Fatal("the engine does not tell of the end")
				}
			}
			// Terminate does not wait for an engine that is this busy.
			if killed != tt.open && (tt.open || took < docker.OwnEndTimeout) {
				t.Errorf("killed by the engine: %v, after %v", killed, took)
			}
			if state, err := s.Poll(t.Context()); err != nil || state.Status != primitives.StatusTerminated {
				t.Errorf("Poll: %+v, %v", state, err)
			}
			if _, err := s.Stat(t.Context(), "."); !errors.Is(err, primitives.ErrTerminated) || errors.Is(err, primitives.ErrUnavailable) {
				t.Errorf("Stat: %v", err)
			}
		})
	}
}
