package environment

import (
	"context"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/ssh"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// sshBackend makes sandboxes on other machines.
func sshBackend() backend {
	return backend{
		create: func(ctx context.Context, cfg Config) (primitives.EnvironmentPrimitive, error) {
			c, err := sshConfig(ctx, cfg)
			if err != nil {
				return nil, asConfigError(err)
			}
			c.Keep = c.Keep || cfg.Keep
			return asPrimitive(ssh.New(ctx, c))
		},
		attach: func(ctx context.Context, cfg Config, id string) (primitives.EnvironmentPrimitive, error) {
			c, err := sshConfig(ctx, cfg)
			if err != nil {
				return nil, asConfigError(err)
			}
			return asPrimitive(ssh.Attach(ctx, c, id))
		},
		remove: func(ctx context.Context, s Sandbox, id string) error {
			c, err := sshConfig(ctx, Config{Sandbox: s})
			if err != nil {
				return err
			}
			return ssh.Remove(ctx, c, id)
		},
		list:     listSSH,
		gc:       gcSSH,
		reach:    reachGuest,
		present:  func(s Sandbox) bool { return s.SSH.Host != "" },
		settings: func(s *Sandbox) any { return &s.SSH },
		paths:    func(s *Sandbox) []*string { return []*string{&s.SSH.Runner} },
		single:   func(Sandbox) bool { return false },
	}
}

// sshConfig adds to the settings of the sandbox what the environment knows.
func sshConfig(ctx context.Context, cfg Config) (ssh.Config, error) {
	c := cfg.Sandbox.SSH
	c.Logger, c.Progress = cfg.Logger, cfg.tell
	if c.Runner == "" {
		c.Runner = cfg.Runner
	}
	if c.Runner != "" {
		return c, nil
	}
	goos, goarch, err := ssh.Platform(ctx, c)
	if err != nil {
		return c, err
	}
	c.Runner, err = bundle.Path(ctx, bundle.Config{OS: goos, Arch: goarch, Progress: cfg.tell})
	return c, err
}

func listSSH(ctx context.Context, s Sandbox) ([]SandboxInfo, error) {
	c, err := sshConfig(ctx, Config{Sandbox: s})
	if err != nil {
		return nil, err
	}
	found, err := ssh.List(ctx, c)
	list := make([]SandboxInfo, 0, len(found))
	for _, f := range found {
		info := SandboxInfo{ID: f.ID, Type: s.Type, Status: primitives.StatusRunning, Created: f.Created, InUse: f.Owned}
		if !f.Owned {
			info.Status = primitives.StatusLost
		}
		list = append(list, info)
	}
	return list, err
}

func gcSSH(ctx context.Context, s Sandbox, opts GCOptions) ([]Garbage, error) {
	c, err := sshConfig(ctx, Config{Sandbox: s})
	if err != nil {
		return nil, err
	}
	found, err := ssh.GC(ctx, c, ssh.GCOptions{DryRun: opts.DryRun, NoGrace: opts.NoGrace})
	removed := make([]Garbage, 0, len(found))
	for _, f := range found {
		removed = append(removed, Garbage{Kind: "folder", ID: f.ID, Why: f.Why, Created: f.Created})
	}
	return removed, err
}
