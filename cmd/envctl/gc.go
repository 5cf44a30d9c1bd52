package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
)

// gcFlags are the flags of gc.
type gcFlags struct {
	target
	environment.GCOptions
	asJSON bool
}

func (a *app) newGCCmd() *cobra.Command {
	f := &gcFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "gc [flags]",
		Short: "Remove orphans: sandboxes, volumes and images whose owner has died",
		Long: `Remove orphans, the sandboxes, volumes and images whose owner has died, and
print them. It never removes a sandbox whose owner lives, that has a client attached
or that was made to be kept ('envctl create', 'envctl run --keep') and has not
expired: end those with 'envctl rm'.

Without --sandbox also patches go that 'envctl run' saved more than 30 days ago, and
files of stored sessions that a program that was killed has left half written.

A sandbox whose program has died lives on for its grace (grace, a minute by default), in
which 'envctl attach --agent NAME' can go on with it; --now does not wait for that.`,
		Example: `  envctl gc --dry-run
  envctl gc --now --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.BoolVarP(&f.DryRun, "dry-run", "n", false, "only print what would be removed")
	fl.BoolVar(&f.NoGrace, "now", false, "do not wait for the grace of sandboxes")
	fl.BoolVar(&f.asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func (f *gcFlags) run(ctx context.Context) error {
	cfg, err := f.load(ctx)
	if err != nil {
		return err
	}
	f.Logger = cfg.Logger
	var removed []environment.Garbage
	var errs []error
	var answered []environment.Sandbox
	var size string
	for _, s := range choices(cfg.Sandbox) {
		some, err := environment.GC(ctx, s, f.GCOptions)
		removed = append(removed, some...)
		if err == nil {
			answered = append(answered, s)
		}
		errs = append(errs, err)
	}
	if cfg.Sandbox.Type == "" {
		some, err := collectPatches(f.DryRun)
		removed = append(removed, some...)
		errs = append(errs, err)
		some, size, err = collectBlobs(ctx, f.DryRun)
		removed = append(removed, some...)
		errs = append(errs, err)
	}
	if f.asJSON {
		return errors.Join(append(errs, printLines(f.app, removed))...)
	}
	if len(removed) > 0 {
		rows := [][]term.Span{term.Plains("TYPE", "KIND", "ID", "CREATED", "WHY")}
		for _, g := range removed {
			created := "-"
			if !g.Created.IsZero() {
				created = g.Created.Local().Format(time.DateTime)
			}
			rows = append(rows, term.Plains(g.Type, g.Kind, g.ID, created, g.Why))
		}
		errs = append(errs, f.app.out.Table(rows...))
	}
	if f.DryRun && !f.NoGrace {
		errs = append(errs, f.printWaiting(ctx, answered, removed))
	}
	what := "removed"
	if f.DryRun {
		what = "would be removed"
	}
	fmt.Fprintf(f.app.err, "%d %s\n", len(removed), what)
	errs = append(errs, f.app.printSize(size))
	return errors.Join(errs...)
}

// printWaiting prints the orphans that are still in their grace period.
func (f *gcFlags) printWaiting(ctx context.Context, from []environment.Sandbox, removed []environment.Garbage) error {
	var errs []error
	opts := f.GCOptions
	opts.NoGrace = true
	for _, s := range from {
		more, err := environment.GC(ctx, s, opts)
		errs = append(errs, err)
		for _, g := range more {
			known := func(r environment.Garbage) bool { return r.Type == g.Type && r.Kind == g.Kind && r.ID == g.ID }
			if !slices.ContainsFunc(removed, known) {
				errs = append(errs, f.app.err.Row(term.Plain(g.ID+" is an orphan in its grace; 'envctl gc --now' does not wait for its end")))
			}
		}
	}
	return errors.Join(errs...)
}
