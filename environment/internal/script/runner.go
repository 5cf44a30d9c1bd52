package script

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// RunnerName is the prefix of the runner's file name in the sandbox. The rest is part of the
// SHA-256 of its content, so that a release never runs the runner of another one.
const RunnerName = "envrunner-"

// runner is the path of the runner in the sandbox, once it is known.
type runner struct {
	turn chan struct{} // holds a token while a call looks for the runner
	path string        // guarded by turn
}

// command returns the command that runs a script.
func (h *Host) command(ctx context.Context, script string) ([]string, error) {
	if own := h.Own[script]; len(own) > 0 {
		return own, nil
	}
	select {
	case h.runner.turn <- struct{}{}:
		defer func() { <-h.runner.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if h.runner.path == "" {
		name, err := h.findRunner(ctx)
		if err != nil {
			return nil, err
		}
		h.runner.path = name
	}
	return []string{h.runner.path, script}, nil
}

// findRunner finds the runner for the sandbox's platform, installs it in the sandbox if need be,
// and returns its path there.
func (h *Host) findRunner(ctx context.Context) (string, error) {
	can := h.Sandbox.Capabilities()
	name, err := bundle.Path(ctx, bundle.Config{
		Explicit: h.Runner, OS: can.OS, Arch: can.Arch,
		Progress: h.Tell,
	})
	if err != nil {
		return "", err
	}
	if at := primitives.RunnerPath(h.Sandbox, name); at != "" {
		return at, nil
	}
	return h.installRunner(ctx, name)
}

// installRunner copies the runner into the sandbox unless it is there, and removes others.
func (h *Host) installRunner(ctx context.Context, name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return "", err
	}
	app := h.Sandbox.Paths().App
	target := path.Join(app, RunnerName+hex.EncodeToString(sum.Sum(nil)[:8]))
	info, err := h.Sandbox.Stat(ctx, target)
	switch {
	case err == nil && info.Mode.IsRegular() && info.Size == size && info.Mode&0o100 != 0:
		return target, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("install the runner: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if err := h.Sandbox.WriteFile(ctx, target, f, primitives.WriteOptions{Mode: 0o755}); err != nil {
		return "", fmt.Errorf("install the runner: %w", err)
	}
	h.Events.Log.Debug("installed the runner", "path", target)
	return target, h.removeRunners(ctx, app, path.Base(target))
}

// removeRunners removes the runners of other releases.
func (h *Host) removeRunners(ctx context.Context, app, keep string) error {
	old, err := h.Sandbox.List(ctx, app, primitives.ListOptions{Pattern: RunnerName + "*"})
	if err != nil {
		return fmt.Errorf("install the runner: %w", err)
	}
	for _, info := range old {
		if info.Path == keep || !strings.HasPrefix(info.Path, RunnerName) {
			continue
		}
		if err := h.Sandbox.Remove(ctx, path.Join(app, info.Path), false); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("install the runner: %w", err)
		}
	}
	return nil
}
