package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"

	"github.com/agentenv-dev/agentenv/primitives/local"
)

// housekeeping is what a host does with the sandboxes of a machine that its guests serve,
// without one of them.
type housekeeping struct {
	list, gc bool
	remove   string
	opts     local.GCOptions
}

func (h *housekeeping) addFlags(fs *flag.FlagSet) {
	fs.BoolVar(&h.list, "list", false, "serve nothing: print the sandboxes below the root as JSON")
	fs.StringVar(&h.remove, "remove", "", "serve nothing: end the sandbox with this `id`, if there is one")
	fs.BoolVar(&h.gc, "gc", false, "serve nothing: remove orphaned sandboxes below the root, and print them as JSON")
	fs.BoolVar(&h.opts.DryRun, "dry-run", false, "with --gc, only print them")
	fs.BoolVar(&h.opts.NoGrace, "no-grace", false, "with --gc, also those whose grace is not over")
}

func (h *housekeeping) wanted() bool { return h.list || h.gc || h.remove != "" }

func (h *housekeeping) run(ctx context.Context, cfg local.Config, stdout io.Writer) error {
	switch {
	case h.remove != "":
		return h.end(ctx, cfg)
	case h.gc:
		removed, err := local.GC(ctx, cfg, h.opts)
		return errors.Join(json.NewEncoder(stdout).Encode(removed), err)
	}
	found, err := local.List(ctx, cfg)
	return errors.Join(json.NewEncoder(stdout).Encode(found), err)
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
