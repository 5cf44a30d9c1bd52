package docker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

func listed(t *testing.T, id string) (primitives.Info, bool) {
	t.Helper()
	list, err := (docker.Config{}).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(i primitives.Info) bool { return i.ID == id })
	if i < 0 {
		return primitives.Info{}, false
	}
	return list[i], true
}

func TestAKeptSandboxThatDiesStaysUntilItIsRemoved(t *testing.T) {
	t.Parallel()
	eng := testdocker.Engine(t)
	for name, end := range map[string]func(id string) error{
		"killed":  func(id string) error { return eng.ContainerKill(t.Context(), id, "KILL") },
		"stopped": func(id string) error { return eng.ContainerStop(t.Context(), id, container.StopOptions{}) },
		"stopped, and nobody is connected": func(id string) error {
			return eng.ContainerStop(t.Context(), id, container.StopOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, testdocker.Busybox(t))
			cfg.Keep, cfg.ReadOnly = true, true // so that there is a volume
			s, err := docker.New(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				err := (docker.Config{}).Remove(context.WithoutCancel(t.Context()), s.ID())
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("removed again: %v", err)
				}
			})
			if err := s.WriteFile(t.Context(), "work", strings.NewReader("of hours"), primitives.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(s.Paths().Workspace, "work")
			found, err := eng.ContainerInspect(t.Context(), s.ID())
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, "connected") {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := end(s.ID()); err != nil {
				t.Fatal(err)
			}
			awaitState(t, eng, s.ID(), container.StateExited)
			// Dry, for other tests have sandboxes here. "died-kept" in TestWhatGCTakes proves that
			// a real run leaves the same.
			garbage, err := (docker.Config{}).GC(t.Context(), primitives.GCOptions{NoGrace: true, DryRun: true})
			if err != nil || slices.ContainsFunc(garbage, func(g primitives.Garbage) bool { return g.ID == s.ID() }) {
				t.Errorf("it is garbage: %+v, %v", garbage, err)
			}
			if info, ok := listed(t, s.ID()); !ok || info.Status != primitives.StatusExited || !info.Kept {
				t.Errorf("in the list: %t, %+v", ok, info)
			}
			_, err = docker.Attach(t.Context(), docker.Config{}, s.ID())
			if !errors.Is(err, primitives.ErrUnavailable) || !strings.Contains(err.Error(), "has ended with status") {
				t.Errorf("attach: %v", err)
			}
			body, _, err := eng.CopyFromContainer(t.Context(), s.ID(), file)
			if err != nil {
				t.Fatalf("its files: %v", err)
			}
			_ = body.Close()
			if err := (docker.Config{}).Remove(t.Context(), s.ID()); err != nil {
				t.Fatal(err)
			}
			if _, ok := listed(t, s.ID()); ok {
				t.Error("it is still there")
			}
			for _, m := range found.Mounts {
				if _, err := eng.VolumeInspect(t.Context(), m.Name); m.Name != "" && err == nil {
					t.Errorf("the volume %s was left", m.Name)
				}
			}
		})
	}
}

// The program is killed before it could tell anyone about the sandbox, or after it has ended the
// sandbox.
func TestAKeptSandboxWhoseCreationWasKilledIsGarbage(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Keep = true
	for name, at := range map[string]struct{ after, request string }{
		"create":     {"", "POST /containers/create"},
		"attach":     {"", "POST /containers/[^/]+/attach"},
		"start":      {"", "POST /containers/[^/]+/start"},
		"terminate":  {"attached", "DELETE /containers/[^/]+"},
		"terminated": {"terminated", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killAt(t, cfg, at.after, at.request)
		})
	}
}

// TestAKeptContainerThatIsStartedAgainHasItsFiles starts it as "docker start" does, and after its
// engine was restarted: no program connects to the guest. Its runner and its cache have gone, as after
// an update.
func TestAKeptContainerThatIsStartedAgainHasItsFiles(t *testing.T) {
	t.Parallel()
	image := testdocker.Busybox(t)
	d := testdocker.NewDaemon(t, nil, "--iptables=true", "--ip-forward=true")
	d.Load(t, image)
	eng := d.Engine(t)
	for name, end := range map[string]func(id string) error{
		"killed while paused": func(id string) error {
			return errors.Join(eng.ContainerPause(t.Context(), id), eng.ContainerKill(t.Context(), id, "KILL"))
		},
		"ended with its engine": func(string) error { d.Stop(t); d.Start(t); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, image)
			cfg.Host, cfg.Keep, cfg.Network = d.Host(), true, ""
			runner := filepath.Join(t.TempDir(), "envrunner")
			copyFile(t, runner, cfg.Runner)
			old := cfg
			old.Runner = runner
			s, err := docker.New(t.Context(), old)
			if err != nil {
				t.Fatal(err)
			}
			id := s.ID()
			t.Cleanup(func() {
				if err := cfg.Remove(context.WithoutCancel(t.Context()), id); err != nil {
					t.Error(err)
				}
			})
			err = s.WriteFile(t.Context(), "work", strings.NewReader("of hours"), primitives.WriteOptions{})
			if err := errors.Join(err, os.Remove(runner), s.Close(), end(id)); err != nil {
				t.Fatal(err)
			}
			awaitState(t, eng, id, container.StateExited)
			for i := range 2 { // the second time it was stopped
				if found, err := cfg.GC(t.Context(), primitives.GCOptions{NoGrace: true}); err != nil || len(found) > 0 {
					t.Errorf("GC before start %d: %+v, %v", i, found, err)
				}
				if i > 0 {
					if err := eng.ContainerStop(t.Context(), id, container.StopOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				startWithoutHost(t, eng, id)
				again, err := docker.Attach(t.Context(), cfg, id)
				if err != nil {
					t.Fatal(err)
				}
				if got := output(t, again, "cat", "work"); got != "of hours" {
					t.Errorf("start %d: got %q", i, got)
				}
				if err := again.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// startWithoutHost starts a container and returns when its guest no longer expects a host.
func startWithoutHost(t *testing.T, eng *client.Client, id string) {
	t.Helper()
	conn, err := eng.ContainerAttach(t.Context(), id, container.AttachOptions{Stream: true, Stdin: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := errors.Join(eng.ContainerStart(t.Context(), id, container.StartOptions{}), conn.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Reader.ReadByte(); err != nil {
		t.Error("the guest said nothing about its missing host:", err)
	}
}
