package environment

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// localBackend makes sandboxes that are processes of this machine.
func localBackend() backend {
	return backend{
		create: func(ctx context.Context, cfg Config) (primitives.EnvironmentPrimitive, error) {
			c, err := findLocalRunner(ctx, localConfig(cfg), cfg)
			if err != nil {
				return nil, err
			}
			c.Stay = c.Stay || cfg.Keep
			return local.New(ctx, c)
		},
		attach: func(ctx context.Context, cfg Config, id string) (primitives.EnvironmentPrimitive, error) {
			return local.Attach(ctx, localConfig(cfg), id)
		},
		remove: func(ctx context.Context, s Sandbox, id string) error {
			p, err := local.Attach(ctx, s.Local, id)
			return endAttached(ctx, p, err)
		},
		list:     listLocal,
		gc:       gcLocal,
		reach:    reachLocal,
		settings: func(s *Sandbox) any { return &s.Local },
		paths: func(s *Sandbox) []*string {
			return []*string{&s.Local.Root, &s.Local.Workspace, &s.Local.Runner}
		},
		single: func(Sandbox) bool { return false },
	}
}

// onThisMachine reports whether a sandbox, whoever made it, uses the programs of this
// machine.
func onThisMachine(p primitives.EnvironmentPrimitive) bool {
	_, is := p.(*local.Sandbox)
	return is
}

// reachLocal finds the runner where it is, if a local sandbox runs its commands as
// this program's user. Another one may not be able to enter its folder.
func reachLocal(ctx context.Context, p primitives.EnvironmentPrimitive) reach {
	home, err := p.Stat(ctx, p.Paths().Home)
	if err != nil || home.UID != os.Geteuid() {
		return nil
	}
	return func(runner string) string {
		name, _ := filepath.Abs(runner) // or it is not reached
		return name
	}
}

// findLocalRunner names the runner where commands are to outlive this program.
func findLocalRunner(ctx context.Context, c local.Config, cfg Config) (local.Config, error) {
	if c.Runner != "" || !cfg.Keep {
		return c, nil
	}
	name, err := bundle.Path(ctx, bundle.Config{Progress: cfg.tell})
	if errors.Is(err, bundle.ErrNotFound) {
		return c, nil // whoever needs it is told so
	}
	if err != nil {
		return c, err
	}
	c.Runner, err = filepath.Abs(name)
	return c, err
}

func localConfig(cfg Config) local.Config {
	c := cfg.Sandbox.Local
	c.Logger = cfg.Logger
	if c.Runner == "" {
		c.Runner = cfg.Runner
	}
	return c
}

func listLocal(ctx context.Context, s Sandbox) ([]SandboxInfo, error) {
	found, err := local.List(ctx, s.Local)
	list := make([]SandboxInfo, 0, len(found))
	for _, f := range found {
		list = append(list, SandboxInfo{
			ID: f.ID, Type: s.Type, Status: primitives.StatusRunning, Created: f.Created, InUse: f.Owned,
			Kept: f.Kept, Orphan: !f.Kept && !f.Owned,
		})
	}
	return list, err
}

func gcLocal(ctx context.Context, s Sandbox, opts GCOptions) ([]Garbage, error) {
	found, err := local.GC(ctx, s.Local, local.GCOptions{DryRun: opts.DryRun, NoGrace: opts.NoGrace})
	removed := make([]Garbage, 0, len(found))
	for _, f := range found {
		removed = append(removed, Garbage{Kind: "folder", ID: f.ID, Why: f.Why, Created: f.Created})
	}
	return removed, err
}
