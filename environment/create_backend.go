package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// backend is what the environment knows of one type of sandbox. To add a type, add
// its backend to [backends] and its settings to [Sandbox].
type backend struct {
	create func(context.Context, Config) (primitives.EnvironmentPrimitive, error)
	attach func(context.Context, Config, string) (primitives.EnvironmentPrimitive, error)
	// remove ends a sandbox in whatever state it is.
	remove func(context.Context, Sandbox, string) error
	list   func(context.Context, Sandbox) ([]SandboxInfo, error)
	gc     func(context.Context, Sandbox, GCOptions) ([]Garbage, error)
	// history returns what is known from outside the sandbox; nil is nothing.
	history func(context.Context, Sandbox, string) ([]LogEntry, error)
	// images holds the images with agents; nil where there are none.
	images *imageStore
	// present reports whether this machine is set up for the type; nil is yes.
	present func(Sandbox) bool
	// reach tells what of this machine lies in a sandbox already; nil is nothing.
	reach func(context.Context, primitives.EnvironmentPrimitive) reach
	// settings returns the block of a Sandbox that belongs to the type.
	settings func(*Sandbox) any
	// paths returns the settings that are paths of this machine.
	paths func(*Sandbox) []*string
	// single reports whether the settings are for one sandbox and no other.
	single func(Sandbox) bool
}

// reachIn is reach for one sandbox.
func (b backend) reachIn(ctx context.Context, p primitives.EnvironmentPrimitive) reach {
	if b.reach == nil {
		return nil
	}
	return b.reach(ctx, p)
}

// reachGuest finds the runner where the backend has put the guest.
func reachGuest(_ context.Context, p primitives.EnvironmentPrimitive) reach {
	s, ok := p.(*guest.Sandbox)
	if !ok {
		return nil
	}
	return s.Runner
}

// imageStore holds the images with agents of one type of sandbox.
type imageStore struct {
	build  func(context.Context, Config) (Image, error)
	list   func(context.Context, Sandbox) ([]Image, error)
	remove func(ctx context.Context, s Sandbox, ref string) error
}

// backends holds the types by name.
func backends() map[string]backend {
	return map[string]backend{
		"local":  localBackend(),
		"docker": dockerBackend(),
		"modal":  modalBackend(),
		"ssh":    sshBackend(),
	}
}

// asPrimitive keeps a nil sandbox from becoming an interface that is not nil, and
// says of a setting that makes no sense that the configuration is wrong.
func asPrimitive[S primitives.EnvironmentPrimitive](s S, err error) (primitives.EnvironmentPrimitive, error) {
	if err != nil {
		return nil, asConfigError(err)
	}
	return s, nil
}

func asConfigError(err error) error {
	if errors.Is(err, fs.ErrInvalid) {
		return fmt.Errorf("%w: sandbox: %w", ErrConfig, err)
	}
	return err
}

// endAttached ends a sandbox that was attached to for that, unless that failed.
func endAttached(ctx context.Context, p primitives.EnvironmentPrimitive, err error) error {
	if err != nil {
		return err
	}
	_, err = p.Terminate(ctx)
	return errors.Join(err, p.Close())
}
