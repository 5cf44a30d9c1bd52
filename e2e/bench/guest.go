//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// withGuest calls use with a sandbox behind the stdio of a real envrunner.
func withGuest(ctx context.Context, use func(p primitives.EnvironmentPrimitive) error) (err error) {
	runner, err := bundle.Path(ctx, bundle.Config{})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-guest-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cmd := exec.CommandContext(ctx, runner, "guest", "--root", dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cmd.Wait()) }()
	p, err := guest.Dial(ctx, guest.Stdio(out, in), guest.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return use(p)
}

// benchGuest measures the cost of the byte stream in addition to that of the engine.
func benchGuest(ctx context.Context) (rows []row, err error) {
	err = withGuest(ctx, func(p primitives.EnvironmentPrimitive) error {
		base, ours, err := interleave(800,
			func() error { return osExecTrueOutput(ctx) },
			func() error { return runTrue(ctx, p) })
		if err != nil {
			return err
		}
		rows = append(rows, ratioRow("guest over stdio exec, p50", "os/exec CombinedOutput", "us", lower, micros(base), micros(ours), 1.3))
		base, ours, err = interleave(5,
			func() error { return rawPipe(ctx, streamSize, 64<<10) },
			func() error { return readStream(ctx, p, streamSize) })
		if err != nil {
			return err
		}
		rows = append(rows, ratioRow("guest over stdio stream", "raw pipe of 64 KiB", "MB/s", higher, rate(streamSize/1e6, base), rate(streamSize/1e6, ours), 0.1))
		b, o, err := filesAgainstRaw(ctx, p)
		if err != nil {
			return err
		}
		rows = append(rows, ratioRow("guest over stdio 1000 x 4 KiB files", "create, write, rename", "ms", lower, b, o, 1.8))
		base, ours, err = watchAgainstRaw(ctx, p)
		rows = append(rows, ratioRow("guest over stdio watch, p50", "raw inotify", "us", lower, micros(base), micros(ours), 4))
		return err
	})
	return rows, err
}
