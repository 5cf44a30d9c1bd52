package primitivestest

import (
	"context"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
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
	prepareHost(t)
	const (
		lives = "List says that the program of a sandbox lives, and what the sandbox is for"
		kept  = "a kept sandbox whose program was killed is not owned, works on and can be removed"
		path  = "the next sandbox has a new workspace at the path of the last one"
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
		{"the path is ignored", path, "path of the workspace", brokenProvider{create: func(s *primitives.Spec) { s.WorkspacePath = "" }}},
		{"the conversation is dropped", lives, "session", brokenProvider{create: func(s *primitives.Spec) { s.Session = "" }}},
	} {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			h := localHarness(t, func(p primitives.EnvironmentPrimitive) primitives.EnvironmentPrimitive { return p })
			h.Provider = func(dir string) (primitives.Provider, primitives.Spec) {
				broken := m.broken
				broken.Provider, _ = localProvider(dir)
				return broken, primitives.Spec{}
			}
			if runAsClient(t, h) {
				return
			}
			t.Parallel()
			expectKilled(t, m.rule, m.says, nil, suiteOf(t, h))
		})
	}
}
