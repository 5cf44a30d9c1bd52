package docker_test

import (
	"context"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agentenv-dev/agentenv/internal/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// config is what all tests have in common.
func config(t testing.TB, image string) docker.Config {
	return docker.Config{
		Image: image, Pull: docker.PullNever, Runner: testdocker.Runner(t),
		Network: "none", Labels: testdocker.Labels(), GraceSeconds: 10,
	}
}

// TestContract runs the contract where there is least: in an empty image, on a
// read-only root, as a user without a name, and without a network.
func TestContract(t *testing.T) {
	cfg := config(t, testdocker.Scratch(t))
	cfg.ReadOnly = true
	cfg.User = "4242:4242"
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
