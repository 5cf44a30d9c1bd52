package docker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

func TestASandboxThatIsEndedFromOutside(t *testing.T) {
	t.Parallel()
	eng := testdocker.Engine(t)
	for name, c := range map[string]struct {
		socket bool
		end    func(t *testing.T, s *guest.Sandbox)
		state  func(primitives.State) bool
	}{
		"killed by the engine": {true, func(t *testing.T, s *guest.Sandbox) {
			if err := eng.ContainerKill(t.Context(), s.ID(), "KILL"); err != nil {
				t.Fatal(err)
			}
		}, killed},
		"killed by the engine, over its stream": {false, func(t *testing.T, s *guest.Sandbox) {
			if err := eng.ContainerKill(t.Context(), s.ID(), "KILL"); err != nil {
				t.Fatal(err)
			}
		}, killed},
		"removed": {true, func(t *testing.T, s *guest.Sandbox) {
			if err := eng.ContainerRemove(t.Context(), s.ID(), container.RemoveOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
		}, killed},
		"the guest killed by the host": {false, func(t *testing.T, s *guest.Sandbox) {
			found, err := eng.ContainerInspect(t.Context(), s.ID())
			if err == nil {
				err = syscall.Kill(found.State.Pid, syscall.SIGKILL)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, killed},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, testdocker.Busybox(t))
			cfg.NoSocket = !c.socket
			s := open(t, cfg)
			u := startAll(t, s)
			c.end(t, s)
			u.expectUnavailable(t, s)
			if state, err := s.Poll(t.Context()); err != nil || !c.state(state) {
				t.Errorf("poll: %+v, %v", state, err)
			}
		})
	}
}

// killed reports whether a state may be that of a container that was killed.
func killed(s primitives.State) bool {
	return s.Status == primitives.StatusExited && s.Exit.Signal == primitives.SIGKILL && s.Exit.Reason != primitives.ReasonExited || s.Status == primitives.StatusLost
}

func TestAStreamThatIsCut(t *testing.T) {
	t.Parallel()
	p := testdocker.NewProxy(t)
	cfg := config(t, testdocker.Busybox(t))
	cfg.Host, cfg.NoSocket = p.Host(), true
	cfg.Grace = 300 * time.Second // time to attach again
	s := open(t, cfg)
	second, err := docker.Attach(t.Context(), cfg, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	first, other := startAll(t, s), startAll(t, second)
	p.Cut()
	first.expectUnavailable(t, s)
	other.expectUnavailable(t, second)
	if state, err := s.Poll(t.Context()); err != nil || state.Status != primitives.StatusLost {
		t.Errorf("poll: %+v, %v", state, err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	// The container lives: a new handle works, and finds no incomplete file.
	third, err := docker.Attach(t.Context(), cfg, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = third.Close() }()
	awaitGone(t, third, "half")
	if got := output(t, third, "echo", "back"); got != "back\n" {
		t.Errorf("got %q", got)
	}
}

// awaitGone waits until an incomplete file has been removed.
func awaitGone(t *testing.T, s *guest.Sandbox, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		list, err := s.List(ctx, ".", primitives.ListOptions{})
		if err != nil {
			t.Fatalf("%s is left: %v", name, err)
		}
		left := false
		for _, f := range list {
			left = left || strings.Contains(f.Path, name) && f.Path != "started" && f.Path != "big"
		}
		if !left {
			return
		}
	}
}

// hung returns a proxy to the engine that can hang, and a configuration that uses it.
func hung(t *testing.T) (*testdocker.Proxy, docker.Config) {
	t.Parallel()
	p := testdocker.NewProxy(t)
	cfg := config(t, testdocker.Busybox(t))
	cfg.Host, cfg.NoSocket = p.Host(), true
	return p, cfg
}

// bounded expects that a call returns soon after its context is done.
func bounded(t *testing.T, name string, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 300*time.Millisecond)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- f(ctx) }()
	select {
	case err := <-result:
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, primitives.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	case <-time.After(patience):
		t.Fatalf("%s hangs", name)
	}
}

func TestAnEngineThatHangsWhileASandboxIsMade(t *testing.T) {
	for _, point := range []string{"/images/", "/containers/create", "/attach", "/start"} {
		t.Run(point, func(t *testing.T) {
			p, cfg := hung(t)
			// An engine that continues later may still make a container: remove it.
			label := t.Name()
			cfg.Labels = maps.Clone(cfg.Labels)
			cfg.Labels["agentenv-test-hung"] = label
			p.Before(func(_, path string) {
				if strings.Contains(path, point) {
					p.Hang()
				}
			})
			bounded(t, "New", func(ctx context.Context) error {
				s, err := docker.New(ctx, cfg)
				if err == nil {
					_, terr := s.Terminate(ctx)
					err = errors.Join(errors.New("no error"), terr, s.Close())
				}
				return err
			})
			p.Before(nil)
			p.Cut()
			p.Flow()
			removeLabelled(t, "agentenv-test-hung="+label)
		})
	}
}

// removeLabelled removes the containers with a label.
func removeLabelled(t *testing.T, label string) {
	t.Helper()
	eng := testdocker.Engine(t)
	left, err := eng.ContainerList(t.Context(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range left {
		if err := eng.ContainerRemove(t.Context(), c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}); err != nil && !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) {
			t.Error(err)
		}
	}
}

func TestAnEngineThatHangsLater(t *testing.T) {
	p, cfg := hung(t)
	s := open(t, cfg)
	output(t, s, "true") // the stream works
	p.Hang()
	for name, f := range map[string]func(ctx context.Context) error{
		"stat":  func(ctx context.Context) error { _, err := s.Stat(ctx, "."); return err },
		"poll":  func(ctx context.Context) error { _, err := s.Poll(ctx); return err },
		"ports": func(ctx context.Context) error { _, err := s.Ports(ctx); return err },
		"write": func(ctx context.Context) error { return s.WriteFile(ctx, "f", zeros{}, primitives.WriteOptions{}) },
		"exec": func(ctx context.Context) error {
			_, err := s.Exec(ctx, primitives.Command{Args: []string{"true"}})
			return err
		},
		"watch":  func(ctx context.Context) error { _, err := s.Watch(ctx, ".", primitives.WatchOptions{}); return err },
		"attach": func(ctx context.Context) error { _, err := docker.Attach(ctx, cfg, s.ID()); return err },
		"list":   func(ctx context.Context) error { _, err := cfg.List(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bounded(t, name, f)
		})
	}
	t.Cleanup(func() {
		// Terminate outlives its context, but not forever. It works when the engine answers again.
		bounded(t, "terminate", func(ctx context.Context) error { _, err := s.Terminate(ctx); return err })
		p.Flow()
	})
}

func TestTheFirstProcessCannotBeKilledFromInside(t *testing.T) {
	t.Parallel()
	s := open(t, config(t, testdocker.Busybox(t)))
	script(t, s, "kill -9 1; kill -STOP 1")
	if got := output(t, s, "echo", "alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}
}

func TestMemoryThatNoKillFrees(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Memory = 32 << 20
	s := open(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// The data stays in memory when its writer is killed, so in the end the kernel kills the guest
	// itself.
	var err error
	for err == nil {
		var res primitives.RunResult
		res, err = s.Run(ctx, primitives.Command{Args: []string{"sh", "-c", "cat /dev/zero >>/dev/shm/x"}}, primitives.RunOptions{})
		if err == nil && res.Status.Reason != primitives.ReasonOOM && res.Status.Reason != primitives.ReasonLost {
			t.Errorf("a command: %+v %q", res.Status, res.Stderr)
			break
		}
	}
	if !errors.Is(err, primitives.ErrUnavailable) || !strings.Contains(err.Error(), "used up its memory") {
		t.Errorf("got %v", err)
	}
	state, err := s.Poll(t.Context())
	if err != nil || state.Status != primitives.StatusExited || state.Exit.Reason != primitives.ReasonOOM {
		t.Errorf("poll: %+v, %v", state, err)
	}
}

// If the processes are each smaller than the guest, the kernel must kill one of them, not the guest
// or the supervisor of a durable command: the rest would be lost with it.
func TestMemoryThatManyHave(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Memory = 32 << 20
	s := open(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// The first shell has the most memory, so it is the process of the command that is killed.
	const hold = "x=$(head -c %d000000 /dev/zero | busybox tr '\\0' x);"
	hog := primitives.Command{
		Args: []string{"sh", "-c", fmt.Sprintf(hold, 3) + ` while true; do sh -c "$SMALL"; done`},
		Env:  []string{"SMALL=" + fmt.Sprintf(hold, 1) + " (sleep 1000; true) &"},
	}
	for _, hog.Durable = range []bool{false, true} {
		p, err := s.Exec(ctx, hog)
		if err != nil {
			t.Fatal(err)
		}
		if status, err := p.Wait(ctx); err != nil || status.Reason != primitives.ReasonOOM {
			t.Errorf("durable %v: %+v, %v", hog.Durable, status, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		script(t, s, "kill -9 -1") // background processes; kill spares itself
	}
}

func TestADiskThatIsFull(t *testing.T) {
	t.Parallel()
	s := open(t, config(t, testdocker.Busybox(t)))
	const dir = "/dev/shm/" // 64 MiB
	if err := s.WriteFile(t.Context(), dir+"kept", strings.NewReader("before"), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"new", "kept"} {
		err := s.WriteFile(t.Context(), dir+name, strings.NewReader(strings.Repeat("x", 100<<20)), primitives.WriteOptions{}) // zeros would be a hole
		if !errors.Is(err, primitives.ErrNoSpace) {
			t.Errorf("%s: %v", name, err)
		}
	}
	list, err := s.List(t.Context(), dir, primitives.ListOptions{})
	if err != nil || len(list) != 1 || list[0].Size != 6 {
		t.Errorf("left: %+v, %v", list, err)
	}
	if err := s.WriteFile(t.Context(), dir+"new", strings.NewReader("after"), primitives.WriteOptions{}); err != nil {
		t.Errorf("then: %v", err)
	}
	if got := script(t, s, "cat /dev/zero >/dev/shm/all; cat /dev/shm/new"); !bytes.Equal(got.Stdout, []byte("after")) || !bytes.Contains(got.Stderr, []byte("No space")) {
		t.Errorf("got %q %q", got.Stdout, got.Stderr)
	}
}
