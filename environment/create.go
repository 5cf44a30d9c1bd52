package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// Create makes a sandbox of the configured type and prepares it. Closing the
// environment ends that sandbox, unless cfg.Keep is set.
//
// ctx covers the creation only. When Create fails nothing is left of the sandbox.
func Create(ctx context.Context, cfg Config) (*Environment, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Pool.Size > 0 {
		return nil, fmt.Errorf("%w: pool: remove it, or make a pool with NewPool and the environment with that: a pool outlives its environments", ErrConfig)
	}
	b, err := cfg.Sandbox.backend()
	if err != nil {
		return nil, err
	}
	p, err := b.create(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("create the sandbox: %w", err)
	}
	terminate := func() error {
		_, err := p.Terminate(context.WithoutCancel(ctx))
		return errors.Join(err, p.Close())
	}
	own := owner{release: terminate, sharesFiles: b.sharesFiles(ctx, p), kept: cfg.Keep}
	if cfg.Keep {
		own.release = p.Close
	}
	e, err := prepare(ctx, p, cfg, own)
	if err != nil {
		return nil, errors.Join(err, terminate())
	}
	if cfg.Keep {
		if err := e.leaveRecord(ctx); err != nil {
			return nil, errors.Join(err, terminate(), e.Close())
		}
	}
	return e, nil
}

// Attach opens a sandbox again that was kept, by its [Environment.ID], from this
// or another program. The sources of cfg.Workspace are not placed again; an Agent
// without a name and an empty SessionID mean those that it was created with, and
// [Environment.Changes] are counted from its creation, as far as the sandbox,
// which keeps the record, is to be trusted; one that was made without Keep has no
// such record, and its changes are errors.ErrUnsupported. Closing the environment leaves the
// sandbox as it is. An id that is unknown or gone is an error as the sandbox's
// own Attach function has it, for example fs.ErrNotExist.
func Attach(ctx context.Context, id string, cfg Config) (*Environment, error) {
	b, err := cfg.Sandbox.backend()
	if err != nil {
		return nil, err
	}
	p, err := b.attach(ctx, cfg, id)
	if err != nil {
		return nil, fmt.Errorf("attach to the sandbox: %w", err)
	}
	own := owner{release: p.Close, sharesFiles: b.sharesFiles(ctx, p), placed: true, kept: true}
	if cfg, err = readRecord(ctx, p, cfg); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	e, err := prepare(ctx, p, cfg, own)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return e, nil
}

// Remove ends a sandbox by its [Environment.ID], with all that runs in it, whoever
// made it. It needs nothing of what the sandbox says about itself, and its errors
// are those of [Attach].
func Remove(ctx context.Context, s Sandbox, id string) error {
	b, err := s.backend()
	if err != nil {
		return err
	}
	p, err := b.attach(ctx, Config{Sandbox: s}, id)
	if err != nil {
		return fmt.Errorf("remove the sandbox: %w", err)
	}
	_, err = p.Terminate(ctx)
	return errors.Join(err, p.Close())
}

// backend makes and finds sandboxes of one type.
type backend struct {
	create func(context.Context, Config) (primitives.EnvironmentPrimitive, error)
	attach func(context.Context, Config, string) (primitives.EnvironmentPrimitive, error)
	list   func(context.Context, Sandbox) ([]SandboxInfo, error)
	gc     func(context.Context, Sandbox, GCOptions) ([]Garbage, error)
	// history returns what is known from outside the sandbox; nil is nothing.
	history func(context.Context, Sandbox, string) ([]LogEntry, error)
	// present reports whether this machine is set up for the type; nil is yes.
	present func(Sandbox) bool
	// sharesFiles reports whether paths of this machine can be used in it.
	sharesFiles func(context.Context, primitives.EnvironmentPrimitive) bool
	// settings returns the block of a Sandbox that belongs to the type.
	settings func(*Sandbox) any
}

// backends holds the types by name.
func backends() map[string]backend {
	return map[string]backend{
		"local": {
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
			list:        listLocal,
			gc:          gcLocal,
			sharesFiles: isOurs,
			settings:    func(s *Sandbox) any { return &s.Local },
		},
		"docker": dockerBackend(),
	}
}

// isOurs reports whether a local sandbox runs its commands as this program's user.
// Another one may not be able to enter the folder of the runner.
func isOurs(ctx context.Context, p primitives.EnvironmentPrimitive) bool {
	home, err := p.Stat(ctx, p.Paths().Home)
	return err == nil && home.UID == os.Geteuid()
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
	if c.Runner == "" {
		c.Runner = cfg.Runner
	}
	return c
}
