package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// diffFlags are the flags of diff.
type diffFlags struct {
	target
	stat, asJSON bool
}

func (a *app) newDiffCmd() *cobra.Command {
	f := &diffFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "diff [flags] ID",
		Short: "Print what changed in a sandbox's workspace",
		Long: `Print what changed in the workspace since the sandbox was made, as a patch that
'git apply' takes at the top of a repository; below it, give --directory.`,
		Example: `  envctl diff 3f2a | git apply
  envctl diff --stat 3f2a`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	f.flags(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	cmd.Flags().BoolVar(&f.stat, "stat", false, "print only the paths that changed")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the paths that changed as JSON, one a line")
	return cmd
}

func (f *diffFlags) run(ctx context.Context, id string) (err error) {
	env, err := f.attach(ctx, id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	if !f.stat && !f.asJSON {
		return env.Patch(ctx, f.app.out)
	}
	changes, err := env.Changes(ctx)
	if err != nil {
		return err
	}
	if f.asJSON {
		return printLines(f.app, changes)
	}
	for _, c := range changes {
		if err := f.app.out.row(plain(fmt.Sprintf("%-8s %s", c.Kind, c.Path))); err != nil {
			return err
		}
	}
	return nil
}
