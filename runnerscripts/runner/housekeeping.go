package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// housekeeping holds the flags with which a guest serves no sandbox, but lists, removes or collects
// those of its machine.
type housekeeping struct {
	list, gc bool
	remove   string
	opts     primitives.GCOptions
}

func (h *housekeeping) addFlags(fs *flag.FlagSet) {
	fs.BoolVar(&h.list, "list", false, "serve nothing: print the sandboxes below the root as JSON")
	fs.StringVar(&h.remove, "remove", "", "serve nothing: end the sandbox with this `id`, if there is one")
	fs.BoolVar(&h.gc, "gc", false, "serve nothing: remove orphaned sandboxes below the root, and old runners beside it, and print them as JSON")
	fs.BoolVar(&h.opts.DryRun, "dry-run", false, "with --gc, only print them")
	fs.BoolVar(&h.opts.NoGrace, "no-grace", false, "with --gc, also those whose grace is not over")
}

func (h *housekeeping) wanted() bool { return h.list || h.gc || h.remove != "" }

func (h *housekeeping) run(ctx context.Context, cfg local.Config, stdout io.Writer) error {
	switch {
	case h.remove != "":
		return h.end(ctx, cfg)
	case h.gc:
		removed, err := local.Provider{Root: cfg.Root}.GC(ctx, h.opts)
		old, rerr := removeRunners(cfg.Root, h.opts.DryRun)
		removed, err = append(removed, old...), errors.Join(err, rerr)
		return errors.Join(json.NewEncoder(stdout).Encode(removed), err)
	}
	found, err := local.Provider{Root: cfg.Root}.List(ctx)
	return errors.Join(json.NewEncoder(stdout).Encode(found), err)
}

// runnerUnused is how long an unused runner is kept beside this one. A program of the same release
// copies it again.
const runnerUnused = 30 * 24 * time.Hour

// removeRunners removes runners of other releases, and remains of copies, from the folder bin
// beside the root. It does so only if this runner was copied there, as package ssh does.
func removeRunners(root string, dryRun bool) ([]primitives.Garbage, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	bin := filepath.Dir(own)
	around, err := filepath.Abs(filepath.Dir(root))
	if err == nil {
		around, err = filepath.EvalSymlinks(around) // own has no symbolic links either
	}
	if err != nil || bin != filepath.Join(around, "bin") {
		return nil, nil // this runner was not copied to bin
	}
	entries, err := os.ReadDir(bin)
	if err != nil {
		return nil, err
	}
	running := runningPrograms()
	var removed []primitives.Garbage
	var errs []error
	for _, e := range entries {
		name := filepath.Join(bin, e.Name())
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), "envrunner-") || !info.Mode().IsRegular() ||
			name == own || running[name] || time.Since(info.ModTime()) < runnerUnused {
			continue
		}
		if !dryRun {
			if err := os.Remove(name); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		removed = append(removed, primitives.Garbage{Kind: "runner", ID: e.Name(), Why: "a runner that was not started for 30 days", Created: info.ModTime().UTC()})
	}
	return removed, errors.Join(errs...)
}

// runningPrograms returns the files that processes of this user execute.
func runningPrograms() map[string]bool {
	running := make(map[string]bool)
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil {
			running[name] = true
		}
	}
	return running
}

func (h *housekeeping) end(ctx context.Context, cfg local.Config) error {
	sandbox, err := local.Attach(ctx, local.Config{Root: cfg.Root}, h.remove)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = sandbox.Terminate(ctx)
	return errors.Join(err, sandbox.Close())
}
