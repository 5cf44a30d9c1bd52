package docker_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// ownRunner makes a configuration use a copy of the runner that only the test's sandboxes have. It
// returns a function that removes the copy.
func ownRunner(t *testing.T, cfg *docker.Config) (remove func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentenv-test-runner-*") //nolint:usetesting // that of the test is closed to other users
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	data, rerr := os.ReadFile(cfg.Runner)
	if err := errors.Join(err, rerr); err != nil {
		t.Fatal(err)
	}
	cfg.Runner = filepath.Join(dir, "runner")
	if err := os.WriteFile(cfg.Runner, data, 0o755); err != nil {
		t.Fatal(err)
	}
	remove = func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(remove)
	return remove
}

func TestForkWhenTheFileOfTheRunnerIsGone(t *testing.T) {
	for name, change := range map[string]func(*docker.Config){
		"root":                          func(*docker.Config) {},
		"another user, without sockets": func(c *docker.Config) { c.User, c.NoSocket = "4242:4242", true },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, testdocker.Busybox(t))
			change(&cfg)
			remove := ownRunner(t, &cfg)
			s := open(t, cfg)
			output(t, s, "sh", "-c", "echo here >file")
			again, err := docker.Attach(t.Context(), docker.Config{}, s.ID())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := again.Close(); err != nil {
					t.Error(err)
				}
			}()
			remove()
			for name, s := range map[string]*guest.Sandbox{"made": s, "attached": again} {
				copies, err := s.Fork(t.Context(), 1)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				f := copies[0].(*guest.Sandbox)
				if got := output(t, f, "cat", "file"); got != "here\n" {
					t.Errorf("%s: the copy reads %q", name, got)
				}
				second, err := f.Fork(t.Context(), 1)
				if err != nil {
					t.Errorf("%s: a fork of the fork: %v", name, err)
				} else {
					end(t, second[0])
				}
				end(t, f)
			}
			noImagesLeft(t)
		})
	}
}

// If the guest does not answer, Fork uses the runner on this machine, or its error says what to do.
func TestForkOfAPausedSandboxWhoseRunnerIsGone(t *testing.T) {
	cfg := config(t, testdocker.Busybox(t))
	remove := ownRunner(t, &cfg)
	s := open(t, cfg)
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	remove()
	if _, err := s.Fork(t.Context(), 1); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "resume") {
		t.Errorf("got %v", err)
	}
	noImagesLeft(t)
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	copies, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	end(t, copies[0])
}
