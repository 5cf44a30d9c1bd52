package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// watchFlags are the flags of watch.
type watchFlags struct {
	target
	asJSON          bool
	include, ignore []string
	count           int
}

func (a *app) newWatchCmd() *cobra.Command {
	f := &watchFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "watch [flags] ID[:PATH]",
		Short: "Print changes of a sandbox's files as they happen",
		Long: `Print what is created, modified, removed and renamed below the workspace, or below
PATH, until interrupted. "watching" on standard error says that no change is missed
from then on.`,
		Example: `  envctl watch 3f2a
  envctl watch --ignore node_modules --ignore .git --json 3f2a`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at := parsePlace(args[0])
			if at.id == "" {
				at = place{id: args[0]}
			}
			return f.run(cmd.Context(), at)
		},
	}
	f.flags(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	fl := cmd.Flags()
	fl.BoolVar(&f.asJSON, "json", false, "print one JSON object a line")
	fl.StringArrayVar(&f.include, "include", nil, "print only paths that match this pattern")
	fl.StringArrayVar(&f.ignore, "ignore", nil, "leave out paths that match this pattern, and all below them")
	fl.IntVarP(&f.count, "count", "n", 0, "end after so many changes")
	return cmd
}

func (f *watchFlags) run(ctx context.Context, at place) (err error) {
	env, err := f.attach(ctx, at.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	events, err := env.Primitive().Watch(ctx, firstOf(at.path, "."), primitives.WatchOptions{Include: f.include, Ignore: f.ignore})
	if err != nil {
		return err
	}
	fmt.Fprintln(f.app.err, "watching")
	enc := runnerscripts.NewEncoder(f.app.out)
	seen := 0
	for ev, err := range events {
		if err != nil {
			return err
		}
		if f.asJSON {
			err = enc.Encode(ev)
		} else {
			err = f.app.out.Row(term.Plain(changeLine(ev)))
		}
		if err != nil {
			return err
		}
		if seen++; seen == f.count {
			return nil
		}
	}
	return ctx.Err()
}

func changeLine(ev primitives.WatchEvent) string {
	name := ev.Path
	if ev.Dir {
		name += "/"
	}
	if ev.From != "" {
		name = ev.From + " -> " + name
	}
	return fmt.Sprintf("%-8s %s", ev.Op, name)
}
