package docker_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// unshared returns a copy of the runner that containers cannot mount, so that they get a copy.
func unshared(t *testing.T, runner string) string {
	t.Helper()
	data, err := os.ReadFile(runner)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "envrunner")
	if err := os.WriteFile(name, data, 0o700); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestASandboxOfAnotherReleaseGetsAGuestOfThisOne(t *testing.T) {
	t.Parallel()
	cfg := config(t, testdocker.Busybox(t))
	cfg.Runner = unshared(t, cfg.Runner)
	s := open(t, cfg)
	if err := s.WriteFile(t.Context(), "work", strings.NewReader("of hours"), primitives.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	older := testdocker.OlderRunner(t)
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	err := w.WriteHeader(&tar.Header{Name: "envrunner", Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(older))})
	if err == nil {
		_, err = w.Write(older)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := testdocker.Engine(t).CopyToContainer(t.Context(), s.ID(), "/agentenv", &packed, container.CopyToContainerOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = docker.Attach(t.Context(), docker.Config{}, s.ID())
	if v, is := errors.AsType[*guest.VersionError](err); !is || v.Theirs != guest.Version-1 {
		t.Fatalf("without a runner: %v", err)
	}
	for range 2 { // the second one installs it while the first one runs
		joined, err := docker.Attach(t.Context(), docker.Config{Runner: cfg.Runner}, s.ID())
		if err != nil {
			t.Fatal(err)
		}
		data, err := primitives.ReadFile(t.Context(), joined, "work", 100)
		if err != nil || string(data) != "of hours" {
			t.Errorf("read %q, %v", data, err)
		}
		result, err := primitives.Run(t.Context(), joined, primitives.Command{Args: []string{"cat", "work"}}, primitives.RunOptions{})
		if err != nil || string(result.Stdout) != "of hours" {
			t.Errorf("command: %q, %v", result.Stdout, err)
		}
		defer func() {
			if err := joined.Close(); err != nil {
				t.Error(err)
			}
		}()
	}
	joined, err := docker.Attach(t.Context(), docker.Config{Runner: cfg.Runner}, s.ID())
	if err != nil {
		t.Fatal(err)
	}
	copies, err := joined.Fork(t.Context(), 1)
	if err != nil {
		t.Fatalf("Fork: %v", err)
	}
	data, err := primitives.ReadFile(t.Context(), copies[0], "work", 100)
	if err != nil || string(data) != "of hours" {
		t.Errorf("read %q in a copy, %v", data, err)
	}
	_, terr := copies[0].Terminate(t.Context())
	if err := errors.Join(terr, copies[0].Close(), joined.Close()); err != nil {
		t.Error(err)
	}
	// The old guest still serves the program that made the sandbox.
	if data, err := primitives.ReadFile(t.Context(), s, "work", 100); err != nil || string(data) != "of hours" {
		t.Errorf("with the first guest: %q, %v", data, err)
	}
}
