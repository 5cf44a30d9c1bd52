package primitivestest

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// brokenProvider changes the results of List, or the spec that Create gets.
type brokenProvider struct {
	primitives.Provider
	list   func(info *primitives.Info)
	create func(spec *primitives.Spec)
}

func (b brokenProvider) List(ctx context.Context) ([]primitives.Info, error) {
	list, err := b.Provider.List(ctx)
	for i := range list {
		if b.list != nil {
			b.list(&list[i])
		}
	}
	return list, err
}

func (b brokenProvider) Create(ctx context.Context, spec primitives.Spec) (primitives.EnvironmentPrimitive, error) {
	if b.create != nil {
		b.create(&spec)
	}
	return b.Provider.Create(ctx, spec)
}

// TestMutantsOfProviders checks that the suite notices a provider that reports wrong facts
// about its sandboxes.
func TestMutantsOfProviders(t *testing.T) {
	const (
		lives = "List says that the program of a sandbox lives, and what the sandbox is for"
		kept  = "a kept sandbox whose program was killed is not owned, works on and can be removed"
		left  = "a sandbox whose program was killed is an orphan within its grace"
	)
	for _, m := range []struct {
		name, rule, says string
		broken           brokenProvider
	}{
		{"whatever runs is owned", kept, "owned", brokenProvider{list: func(i *primitives.Info) { i.Owned = true }}},
		{"nothing is owned", lives, "owned", brokenProvider{list: func(i *primitives.Info) { i.Owned = false }}},
		{"there are no orphans", left, "orphan", brokenProvider{list: func(i *primitives.Info) { i.Orphan = false }}},
		{"what is kept is an orphan", kept, "orphan", brokenProvider{list: func(i *primitives.Info) { i.Orphan = !i.Owned }}},
		{"nothing is kept", kept, "kept", brokenProvider{create: func(s *primitives.Spec) { s.Keep = false }}},
		{"the conversation is dropped", lives, "session", brokenProvider{create: func(s *primitives.Spec) { s.Session = "" }}},
	} {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			h := localHarness(t, func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive { return p })
			h.Provider = func(dir string) (primitives.Provider, primitives.Spec) {
				broken := m.broken
				broken.Provider = local.Provider{Root: dir, Runner: func(context.Context, string, string) (string, error) { return os.Executable() }}
				return broken, primitives.Spec{}
			}
			if runAsClient(t, h) {
				return
			}
			prepareHost(t)
			s := newSuite(t, h)
			t.Cleanup(func() { s.join(t) })
			log := attempt(t, s, findRule(t, m.rule))
			if len(log) == 0 {
				t.Fatalf("%q passes", m.rule)
			}
			t.Logf("%q says: %s", m.rule, brief(log[0]))
			if !strings.HasPrefix(log[0], m.says) {
				t.Errorf("%q fails for another reason", m.rule)
			}
		})
	}
}
