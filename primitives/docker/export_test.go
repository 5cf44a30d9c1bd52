package docker

import (
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// OwnEndTimeout is how long Terminate waits for a guest that ends by itself.
const OwnEndTimeout = ownEndTimeout

// SweepInterval is the least time between two sweeps of a program.
const SweepInterval = sweepInterval

// HasLocale is hasLocale.
func HasLocale(env ...string) bool { return hasLocale(env...) }

func driverOf(s *guest.Sandbox) *driver {
	d, _ := s.Driver().(*driver) // New and Attach use no other driver
	return d
}

// StayJustFrozen makes a handle treat the container as just paused or resumed, until the next pause
// or resume, even on a slow machine.
func StayJustFrozen(s *guest.Sandbox) {
	later := time.Now().Add(time.Hour)
	driverOf(s).frozen.Store(&later)
}

// AwaitSweep waits for the sweep that New has started in the background.
func AwaitSweep(s *guest.Sandbox) {
	if d := driverOf(s); d.sweep != nil {
		<-d.sweep.done
	}
}

// ForgetSweep makes the next New on an engine collect orphans again.
func ForgetSweep(host string) { forgetSweep(host) }

// Config holds all settings of a sandbox, with the path of the runner.
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
