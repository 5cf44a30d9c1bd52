package modal_test

import (
	"context"
	"os"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/modal"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// TestContract runs the whole contract over the server, or at Modal: see realAccount.
func TestContract(t *testing.T) {
	if !*realAccount {
		useServer(t)
	}
	primitivestest.Run(t, harness(config(t)))
}

// useServer starts a server, unless the test runs as another program, which uses
// that of the first one.
func useServer(t *testing.T) {
	t.Helper()
	if os.Getenv("PRIMITIVESTEST_CLIENT") == "" {
		newServer(t)
	}
}

func harness(cfg modal.Config) primitivestest.Harness {
	return primitivestest.Harness{
		Open: func(ctx context.Context, _ string) (primitives.EnvironmentPrimitive, error) {
			return modal.New(ctx, cfg)
		},
		Attach: func(ctx context.Context, _, id string) (primitives.EnvironmentPrimitive, error) {
			return modal.Attach(ctx, cfg, id)
		},
		Restore: func(ctx context.Context, _, snapshot string) (primitives.EnvironmentPrimitive, error) {
			again := cfg
			again.Image = snapshot
			return modal.New(ctx, again)
		},
		Forget: func(ctx context.Context, snapshot string) error {
			return modal.RemoveSnapshot(ctx, cfg, snapshot)
		},
		Destroy: func(ctx context.Context, p primitives.EnvironmentPrimitive) error {
			return killGuests(ctx, p.ID())
		},
	}
}
