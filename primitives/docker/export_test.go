package docker

import (
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// OwnEndTimeout is how long Terminate waits for a guest that ends by itself.
const OwnEndTimeout = ownEndTimeout

// SweepInterval is how long a program leaves it at one sweep.
const SweepInterval = sweepInterval

func driverOf(s *guest.Sandbox) *driver {
	d, _ := s.Driver().(*driver) // New and Attach make no others
	return d
}

// StayJustFrozen makes a handle treat the container as just paused or resumed, until the
// next pause or resume, however slow the machine is.
func StayJustFrozen(s *guest.Sandbox) {
	later := time.Now().Add(time.Hour)
	driverOf(s).frozen.Store(&later)
}

// AwaitSweep returns when what New has begun to do beside its own work is done.
func AwaitSweep(s *guest.Sandbox) {
	if d := driverOf(s); d.sweep != nil {
		<-d.sweep.done
	}
}

// ForgetSweep makes the next New of an engine look for orphans again.
func ForgetSweep(host string) { forgetSweep(host) }

// Config is all that makes a sandbox, with the runner found.
type Config = config

// New makes a sandbox.
func New(ctx context.Context, cfg Config) (*guest.Sandbox, error) { return newSandbox(ctx, cfg) }

// Attach opens a sandbox with the runner of cfg.
func Attach(ctx context.Context, cfg Config, id string) (*guest.Sandbox, error) {
	s, err := attach(ctx, cfg, id)
	return s, wrap("attach", id, err)
}

// FindImage returns the image that BuildImage would build.
func FindImage(ctx context.Context, cfg Config, install primitives.Install) (primitives.Image, error) {
	cfg.Install = install
	return cfg.findBuilt(ctx)
}

// BuildImage builds an image.
func BuildImage(ctx context.Context, cfg Config, install primitives.Install) (primitives.Image, error) {
	cfg.Install = install
	return cfg.buildImage(ctx)
}
