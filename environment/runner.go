package environment

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
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/bundle"
)

// runnerName begins the name of the runner in the sandbox. What follows is a part
// of the sum of its content, so that another release never meets a stale one.
const runnerName = "envrunner-"

// runner is where the runner lies in the sandbox once it is known.
type runner struct {
	turn chan struct{} // holds a token while someone looks
	path string        // guarded by turn
}

// named returns what replaces a script; empty if nothing does.
func (s Scripts) named(script string) []string {
	return map[string][]string{
		runnerscripts.SetupSession:   s.SetupSession,
		runnerscripts.ExecuteQuery:   s.ExecuteQuery,
		runnerscripts.ReadTranscript: s.ReadTranscript,
	}[script]
}

// command returns what to run for a script.
func (e *Environment) command(ctx context.Context, script string) ([]string, error) {
	if own := e.cfg.Scripts.named(script); len(own) > 0 {
		return own, nil
	}
	select {
	case e.runner.turn <- struct{}{}:
		defer func() { <-e.runner.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if e.runner.path == "" {
		name, err := e.findRunner(ctx)
		if err != nil {
			return nil, err
		}
		e.runner.path = name
	}
	return []string{e.runner.path, script}, nil
}

// findRunner finds the runner for the sandbox's platform and makes it available
// there.
func (e *Environment) findRunner(ctx context.Context) (string, error) {
	can := e.prim.Capabilities()
	name, err := bundle.Path(ctx, bundle.Config{
		Explicit: e.cfg.Runner, OS: can.OS, Arch: can.Arch,
		Progress: e.cfg.tell,
	})
	if err != nil {
		return "", err
	}
	if holder, ok := e.prim.(interface{ Runner(file string) string }); ok {
		if at := holder.Runner(name); at != "" {
			return at, nil // its provider has put it there
		}
	}
	return e.installRunner(ctx, name)
}

// installRunner copies the runner into the sandbox unless it is there, and removes
// others.
func (e *Environment) installRunner(ctx context.Context, name string) (string, error) {
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
	app := e.prim.Paths().App
	target := path.Join(app, runnerName+hex.EncodeToString(sum.Sum(nil)[:8]))
	info, err := e.prim.Stat(ctx, target)
	switch {
	case err == nil && info.Mode.IsRegular() && info.Size == size && info.Mode&0o100 != 0:
		return target, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("install the runner: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if err := e.prim.WriteFile(ctx, target, f, primitives.WriteOptions{Mode: 0o755}); err != nil {
		return "", fmt.Errorf("install the runner: %w", err)
	}
	e.log.Debug("installed the runner", "path", target)
	return target, e.removeRunners(ctx, app, path.Base(target))
}

// removeRunners removes the runners of other releases.
func (e *Environment) removeRunners(ctx context.Context, app, keep string) error {
	old, err := e.prim.List(ctx, app, primitives.ListOptions{Pattern: runnerName + "*"})
	if err != nil {
		return fmt.Errorf("install the runner: %w", err)
	}
	for _, info := range old {
		if info.Path == keep || !strings.HasPrefix(info.Path, runnerName) {
			continue
		}
		if err := e.prim.Remove(ctx, path.Join(app, info.Path), false); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("install the runner: %w", err)
		}
	}
	return nil
}
