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

// TestContract runs the whole contract with the test server, or at Modal: see realAccount.
func TestContract(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*modal.Config)
		groups []string
	}{
		{"root", func(*modal.Config) {}, nil},
		{"another user, of an image of its own", func(c *modal.Config) {
			c.User, c.Dockerfile = "4242:4242", []string{"RUN mkdir -p /opt/tool"}
		}, []string{"exec", "archive", "lifecycle"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config(t)
			c.change(&cfg)
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

// harness creates sandboxes with cfg. Modal does not tell a guest that its client was killed:
// the guest pings after 30 s of silence and waits 30 s for the answer.
func harness(cfg modal.Config) primitivestest.Harness {
	return primitivestest.Harness{
		Patience: 2 * time.Minute,
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
