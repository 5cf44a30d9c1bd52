package primitivestest_test

import (
	"context"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

// TestReference runs the suite on the backend that the mutants are made of.
func TestReference(t *testing.T) {
	primitivestest.Run(t, primitivestest.Harness{
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			return local.New(ctx, local.Config{Root: dir})
		},
	})
}
