//go:build linux

package main

import (
	"context"
	"errors"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
)

// benchDockerReady measures how long it takes to get a ready sandbox from a pool.
func benchDockerReady(ctx context.Context) (rows []row, err error) {
	err = withEngine(ctx, func(e *engine) error {
		for _, w := range ways() {
			took, err := e.acquire(ctx, w)
			if err != nil {
				return err
			}
			rows = append(rows, limitRow("docker acquire of a full pool over "+w.name+", p50", "ms", lower, millis(median(took)), 2))
		}
		return nil
	})
	return rows, err
}

// acquire takes sandboxes from a full pool: while a pool refills, it shares the machine with the
// busy engine.
func (e *engine) acquire(ctx context.Context, w way) (took []time.Duration, err error) {
	const size, rounds = 2, 11
	settings := e.config(w)
	provider := e.provider(w)
	provider.Runner = nil // the environment has it
	settings.Provider = provider
	pool, err := environment.NewPool(ctx, environment.Config{
		Sandbox: settings, Pool: environment.PoolConfig{Size: size}, Runner: e.runner,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range rounds {
		for pool.Ready() < size {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		start := time.Now()
		env, err := pool.Create(ctx, environment.Config{})
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
		if err := env.Close(); err != nil {
			return nil, err
		}
	}
	return took, nil
}
