package primitivestest_test

import (
	"context"
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/primitives/primitivestest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "supervise" {
		// Not os.Exit: with the race detector, it sleeps for a second.
		syscall.Exit(local.Supervise(context.Background(), os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

// reference is the good backend from which the mutants are made.
func reference(t testing.TB) primitivestest.Harness {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return primitivestest.Harness{
		Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
			return local.New(ctx, local.Config{Root: dir, Runner: self})
		},
		Attach: func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error) {
			return local.Attach(ctx, local.Config{Root: dir, Runner: self}, id)
		},
		Provider: func(dir string) (primitives.Provider, primitives.Spec) {
			return local.Provider{Root: dir, Runner: func(context.Context, string, string) (string, error) { return self, nil }}, primitives.Spec{}
		},
	}
}

func TestReference(t *testing.T) { primitivestest.Run(t, reference(t)) }
