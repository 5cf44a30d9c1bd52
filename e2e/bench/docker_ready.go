//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives/docker"
)

// benchDockerReady measures how long it takes to get a sandbox that a pool has
// ready.
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

// acquire takes sandboxes of a pool that is full: one that is being refilled shares
// the machine with the engine at work.
func (e *engine) acquire(ctx context.Context, w way) (took []time.Duration, err error) {
	const size, rounds = 2, 11
	settings := environment.Sandbox{Type: "docker", Docker: e.config(w)}
	settings.Docker.Runner = "" // the environment has it
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

// benchDockerPlain compares commands in a container without a guest with the calls
// of the engine that they are made of.
func benchDockerPlain(ctx context.Context) (rows []row, err error) {
	err = withEngine(ctx, func(e *engine) error {
		id, err := e.create(ctx)
		if err != nil {
			return err
		}
		b, err := e.open(ctx, way{name: "plain calls"}, func(c *docker.Config) { c.Runner = "" })
		if err != nil {
			return err
		}
		took, err := compete(40,
			clocked(1, func() error { return e.apiExec(ctx, id, io.Discard, "/bin/true") }),
			clocked(1, func() error { return runTrue(ctx, b) }))
		if err := errors.Join(err, b.end(ctx)); err != nil {
			return err
		}
		rows = append(rows, ratioRow("docker exec without a guest, p50", "client API", "ms", lower, millis(mid(took[0])), millis(mid(took[1])), 1.02))
		return nil
	})
	return rows, err
}
