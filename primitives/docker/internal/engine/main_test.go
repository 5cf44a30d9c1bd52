package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
)

func TestMain(m *testing.M) { testleak.Exit(testdocker.Main(m)) }

// ask sends one request to the engine at a host.
func ask(ctx context.Context, host string) error {
	eng, err := engine.Connect(host)
	if err != nil {
		return err
	}
	_, err = eng.ContainerList(ctx, container.ListOptions{})
	return errors.Join(engine.Explain(eng, err), eng.Close())
}

// settings holds all settings of a sandbox.
type settings struct {
	docker.Provider
	primitives.Spec
}

// config returns the settings of a small sandbox.
func config(t *testing.T) settings {
	runner := func(context.Context, string, string) (string, error) { return testdocker.Runner(t), nil }
	return settings{
		docker.Provider{Pull: docker.PullNever, Runner: runner},
		primitives.Spec{Image: testdocker.Busybox(t), Network: "none", Labels: testdocker.Labels(), Grace: 10 * time.Second},
	}
}

// open makes a sandbox that is terminated and closed with the test.
func open(t *testing.T, cfg settings) primitives.EnvironmentPrimitive {
	t.Helper()
	s, err := cfg.Create(t.Context(), cfg.Spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := s.Terminate(context.WithoutCancel(t.Context()))
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func output(t *testing.T, s primitives.EnvironmentPrimitive, args ...string) string {
	t.Helper()
	res, err := primitives.Run(t.Context(), s, primitives.Command{Args: args}, primitives.RunOptions{})
	if err != nil || !res.Status.Success() {
		t.Fatalf("%q: %+v, %v: %s", args, res.Status, err, res.Stderr)
	}
	return string(res.Stdout)
}

func writeFile(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
