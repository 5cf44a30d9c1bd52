package docker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// plainConfig is for a sandbox in which no guest runs.
func plainConfig(t testing.TB) docker.Config {
	cfg := config(t, testdocker.Busybox(t))
	cfg.Runner = ""
	return cfg
}

// TestContractWithoutAGuest runs the contract on nothing but the engine and the
// image's own commands.
func TestContractWithoutAGuest(t *testing.T) {
	cfg := plainConfig(t)
	eng := testdocker.Engine(t)
	primitivestest.Run(t, primitivestest.Harness{
		Open: func(ctx context.Context, _ string) (primitives.EnvironmentPrimitive, error) {
			return docker.New(ctx, cfg)
		},
		Attach: func(ctx context.Context, _, id string) (primitives.EnvironmentPrimitive, error) {
			return docker.Attach(ctx, cfg, id)
		},
		Destroy: func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			return eng.ContainerRemove(ctx, p.ID(), container.RemoveOptions{Force: true, RemoveVolumes: true})
		},
	})
}

func TestAnImageWithoutAShellNeedsAGuest(t *testing.T) {
	cfg := plainConfig(t)
	cfg.Image = testdocker.Scratch(t)
	s, err := docker.New(t.Context(), cfg)
	if err == nil {
		t.Fatal("no error", s.Close())
	}
	var where *primitives.Error
	if !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &where) {
		t.Errorf("got %v, want errors.ErrUnsupported", err)
	}
}

// newPlain makes a sandbox without a guest for a benchmark.
func newPlain(b *testing.B) (*docker.Sandbox, error) {
	b.Helper()
	s, err := docker.New(b.Context(), plainConfig(b))
	if err != nil {
		return nil, err
	}
	b.Cleanup(func() {
		_, err := s.Terminate(context.WithoutCancel(b.Context()))
		if err := errors.Join(err, s.Close()); err != nil {
			b.Error(err)
		}
	})
	return s, nil
}
