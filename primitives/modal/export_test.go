package modal

import (
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// RunnerImage returns the name of the image that holds a runner.
func RunnerImage(file string) (string, error) {
	r, err := readRunner(file)
	if err != nil {
		return "", err
	}
	return r.name, nil
}

// WithKeepAlive returns cfg with a keep-alive interval for both ends of the guest's stream.
func WithKeepAlive(cfg Config, every time.Duration) Config {
	cfg.keepAlive = every
	return cfg
}

// WithPublishTimeout returns cfg with a limit for the wait for the published runner.
func WithPublishTimeout(cfg Config, timeout time.Duration) Config {
	cfg.publishTimeout = timeout
	return cfg
}

// Forget expires all that is cached about Modal.
func Forget() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for _, k := range shared.known {
		k.mu.Lock()
		for key, f := range k.ids {
			f.at = f.at.Add(-cacheLifetime)
			k.ids[key] = f
		}
		k.mu.Unlock()
	}
}

// Config is the complete configuration of a sandbox, including the path of the runner.
type Config = config

// New creates a sandbox.
func New(ctx context.Context, cfg Config) (*guest.Sandbox, error) {
	s, err := create(ctx, cfg)
	return s, wrap("create", cfg.Image, err)
}

// Attach opens a sandbox with the runner of cfg.
func Attach(ctx context.Context, cfg Config, id string) (*guest.Sandbox, error) {
	s, err := attach(ctx, cfg, id)
	return s, wrap("attach", id, err)
}

// Validate checks a configuration without asking Modal.
func (c config) Validate() error { return c.check() }

// Look returns the state of a sandbox.
func Look(ctx context.Context, p Provider, id string) (primitives.State, error) {
	state, err := p.look(ctx, id)
	return state, wrap("look", id, err)
}
