package modal_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// TestContract runs the contract with the test server, or the whole of it at Modal: see
// realAccount. The test server has the files of this machine, so it affects only what crosses
// the stream piece by piece, the life of sandboxes and their copies.
func TestContract(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*modal.Config)
		groups []string
	}{
		{
			"root", func(*modal.Config) {},
			[]string{"exec", "streams", "ending", "terminal", "lifecycle", "forward", "copies"},
		},
		{"another user, of an image of its own", func(c *modal.Config) {
			c.User, c.Dockerfile = "4242:4242", []string{"RUN mkdir -p /opt/tool"}
		}, []string{"exec"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config(t)
			c.change(&cfg)
			if *realAccount {
				c.groups = nil
			} else {
				// Modal does not tell a guest that its client was killed: the guest pings.
				cfg = modal.WithKeepAlive(cfg, 15*time.Second)
			}
			h := harness(cfg)
			h.Groups = c.groups
			// Client processes of the suite use the server of the first process.
			if !*realAccount && os.Getenv("PRIMITIVESTEST_CLIENT") == "" {
				s := startServer(t)
				h.Destroy = func(_ context.Context, p primitives.EnvironmentPrimitive) error { return s.destroy(p.ID()) }
			}
			primitivestest.Run(t, h)
		})
	}
}

// harness creates sandboxes with cfg.
func harness(cfg modal.Config) primitivestest.Harness {
	return primitivestest.Harness{
		Patience: 2 * time.Minute, // Modal itself does not tell a guest for a minute that its client was killed
		Open: func(ctx context.Context, _ string) (primitives.EnvironmentPrimitive, error) {
			return modal.New(ctx, cfg)
		},
		Attach: func(ctx context.Context, _, id string) (primitives.EnvironmentPrimitive, error) {
			return modal.Attach(ctx, cfg, id)
		},
		Provider: func(string) (primitives.Provider, primitives.Spec) {
			runner, provider := cfg.Runner, cfg.Provider
			provider.Runner = func(context.Context, string, string) (string, error) { return runner, nil }
			return provider, cfg.Spec
		},
		Restore: func(ctx context.Context, _, snapshot string) (primitives.EnvironmentPrimitive, error) {
			again := cfg
			again.Image = snapshot
			return modal.New(ctx, again)
		},
		Forget: func(ctx context.Context, snapshot string) error {
			return cfg.RemoveSnapshot(ctx, snapshot)
		},
	}
}
