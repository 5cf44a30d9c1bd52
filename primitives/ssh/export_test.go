package ssh

import (
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// Config holds all settings of one sandbox, with the runner found.
type Config = config

// New creates a sandbox.
func New(ctx context.Context, cfg Config) (*guest.Sandbox, error) { return create(ctx, cfg) }

// Attach opens a sandbox with the runner of cfg.
func Attach(ctx context.Context, cfg Config, id string) (*guest.Sandbox, error) {
	return attach(ctx, cfg, id)
}

// Platform returns the platform of the machine, which decides about its runner.
func Platform(ctx context.Context, p Provider) (goos, goarch string, err error) {
	return p.platform(ctx)
}

// RunScript runs a script on the machine.
func RunScript(ctx context.Context, timeout time.Duration, script string) error {
	_, err := run(ctx, timeout, "machine", nil, script)
	return err
}

// Connection returns the process ID of a sandbox's ssh command.
func Connection(s *guest.Sandbox) int {
	d, _ := s.Driver().(*driver) // New returns no other drivers
	return d.conn.cmd.Process.Pid
}
