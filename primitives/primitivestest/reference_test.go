package primitivestest

import (
	"context"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "supervise" {
		// Not os.Exit: with the race detector, it sleeps for a second.
		syscall.Exit(local.Supervise(context.Background(), os.Args[2]))
	}
	testleak.Main(m)
}

// TestReference checks that the backends from which the mutants are made are good.
func TestReference(t *testing.T) {
	var names []string
	for _, g := range groups() {
		names = append(names, g.name)
	}
	copies := slices.Index(names, "copies")
	t.Run("local", func(t *testing.T) {
		h := localHarness(t, flawless)
		h.Groups = slices.Delete(slices.Clone(names), copies, copies+1)
		h.Attach = func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error) {
			p, err := local.Attach(ctx, local.Config{Root: dir}, id)
			if err != nil {
				return nil, err
			}
			return flawless(p), nil
		}
		h.Provider = localProvider
		Run(t, h)
	})
	t.Run("model", func(t *testing.T) {
		h := modelHarness(t, "")
		h.Groups = names[copies:][:1]
		Run(t, h)
	})
}

// localProvider returns the provider of local sandboxes.
func localProvider(dir string) (primitives.Provider, primitives.Spec) {
	return local.Provider{Root: dir, Runner: func(context.Context, string, string) (string, error) { return os.Executable() }}, primitives.Spec{}
}
