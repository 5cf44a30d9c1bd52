package primitivestest

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// TestMutantsOfKilledPrograms shows that the suite sees what another program leaves when
// it is killed. Such a backend starts the command with a supervisor, which outlives the
// program.
func TestMutantsOfKilledPrograms(t *testing.T) {
	const name = "a killed program takes its commands along, not those of others"
	for _, m := range []struct {
		name     string
		outlives func(cmd primitives.Command) bool
	}{
		{"all that a killed program started lives on", func(primitives.Command) bool { return true }},
		{"a process that leaves its parent lives on", func(cmd primitives.Command) bool { return slices.Contains(cmd.Args, "spawn") }},
	} {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			h := Harness{
				Open: func(ctx context.Context, dir string) (primitives.EnvironmentPrimitive, error) {
					self, err := os.Executable()
					if err != nil {
						return nil, err
					}
					p, err := local.New(ctx, local.Config{Root: dir, Runner: self})
					if err != nil {
						return nil, err
					}
					t.Cleanup(func() { endLocal(t, dir, p) })
					return p, nil
				},
				Attach: func(ctx context.Context, dir, id string) (primitives.EnvironmentPrimitive, error) {
					p, err := local.Attach(ctx, local.Config{Root: dir}, id)
					if err != nil {
						return nil, err
					}
					f := whole(p)
					f.exec = func(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
						cmd.Durable = m.outlives(cmd)
						return p.Exec(ctx, cmd)
					}
					return wrapped{f}, nil
				},
			}
			if runAsClient(t, h) {
				return
			}
			prepareHost(t)
			s := newSuite(t, h)
			s.patience = 4 * time.Second // longer than the grace of a good backend
			t.Cleanup(func() { s.join(t) })
			log := attempt(t, s, findRule(t, name))
			if len(log) == 0 {
				t.Fatalf("%q passes", name)
			}
			t.Logf("%q says: %s", name, brief(log[0]))
			if !strings.Contains(log[0], "processes live on") {
				t.Errorf("%q fails for another reason", name)
			}
		})
	}
}
