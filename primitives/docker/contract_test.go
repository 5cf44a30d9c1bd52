package docker_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// config returns the configuration that all tests share.
func config(t testing.TB, image string) docker.Config {
	return docker.Config{Spec: primitives.Spec{Image: image, Network: "none", Labels: testdocker.Labels(), Grace: 10 * time.Second}, Provider: docker.Provider{Pull: docker.PullNever}, Runner: testdocker.Runner(t)}
}

// TestContract runs the whole contract once, over the socket. Containers of other kinds run the
// groups that they can affect; TestContractOfCopies copies on a writable root. The tests of the
// runner's guest run the whole contract over stdio.
func TestContract(t *testing.T) {
	for _, c := range []struct {
		name            string
		image           string
		user            string // "" is root
		readOnly        bool
		network         string
		ownersWorkspace int // the owner of a bound workspace; -1 means none
		noSocket        bool
		groups          []string // nil is all of them
	}{
		{"busybox, socket, user, read-only, bridge", testdocker.Busybox(t), "tester", true, "bridge", -1, false, nil},
		// A stream through the engine, as to a remote one, affects running commands and their end.
		// The guest reads files the same way over every stream; primitives/guest tests that.
		{
			"debian, stdio, root", testdocker.Debian(t), "", false, "none", -1, true,
			[]string{"exec", "streams", "ending", "terminal", "lifecycle", "forward"},
		},
		// A folder of the host and a user without a name affect files; an image without programs
		// affects the start of commands.
		{
			"scratch, socket, nameless user, read-only, bound workspace", testdocker.Scratch(t), "4242:4242", true, "none", 4242, false,
			[]string{"exec", "files", "archive", "watch"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config(t, c.image)
			cfg.User, cfg.ReadOnly, cfg.Network, cfg.NoSocket = c.user, c.readOnly, c.network, c.noSocket
			h := harness(cfg, c.ownersWorkspace, testdocker.Engine(t))
			h.Groups = c.groups
			if c.noSocket {
				runner := cfg.Runner
				provider := cfg.Provider
				provider.Runner = func(context.Context, string, string) (string, error) { return runner, nil }
				h.Provider = func(string) (primitives.Provider, primitives.Spec) { return provider, cfg.Spec }
			}
			primitivestest.Run(t, h)
		})
	}
}

// harness makes sandboxes with the same settings. If owner is not negative, each has a folder of
// the host as its workspace, which that user owns.
func harness(cfg docker.Config, owner int, eng *client.Client) primitivestest.Harness {
	return primitivestest.Harness{
		NoSetID: owner >= 0, // a folder of the host is writable
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			cfg := cfg
			if owner >= 0 {
				workspace, err := os.MkdirTemp(dir, "workspace-*")
				if err != nil {
					return nil, err
				}
				if err := os.Chown(workspace, owner, owner); err != nil {
					return nil, err
				}
				cfg.Workspace = workspace
			}
			return docker.New(ctx, cfg)
		},
		Attach: func(ctx context.Context, _, id string) (primitives.EnvironmentPrimitive, error) {
			return docker.Attach(ctx, cfg, id)
		},
		Restore: func(ctx context.Context, _, snapshot string) (primitives.EnvironmentPrimitive, error) {
			again := cfg
			again.Image = snapshot
			return docker.New(ctx, again)
		},
		Forget: func(ctx context.Context, snapshot string) error {
			return cfg.RemoveSnapshot(ctx, snapshot)
		},
		Destroy: func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			return eng.ContainerRemove(ctx, p.ID(), container.RemoveOptions{Force: true, RemoveVolumes: true})
		},
	}
}
