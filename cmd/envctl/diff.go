package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session/store"
)

// diffFlags are the flags of diff.
type diffFlags struct {
	target
	stat, asJSON bool
}

func (a *app) newDiffCmd() *cobra.Command {
	f := &diffFlags{target: target{app: a}}
	cmd := &cobra.Command{
		Use:   "diff [flags] ID[@CHECKPOINT [@CHECKPOINT]]",
		Short: "Print what changed in a workspace",
		Long: `Print what changed in the workspace since the sandbox was made, as a patch that
'git apply' takes at the top of a repository; below it, give --directory.

With a checkpoint of 'envctl log', print what changed in the session from there to its present
checkpoint, or to a second one. If the sandbox of a session has ended, its first checkpoint is
compared with the present one.`,
		Example: `  envctl diff 3f2a | git apply
  envctl diff --stat 3f2a
  envctl diff 3f2a@3
  envctl diff 3f2a@3 @5`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := parsePoint(args[0])
			var to point
			if err == nil && len(args) == 2 {
				to, err = parsePoint(args[1])
				if err == nil && (from.number == 0 || to.number == 0 || to.id != "" && to.id != from.id) {
					err = usagef("%q and %q are no two checkpoints of one session; give them as in 3f2a@3 @5", args[0], args[1])
				}
			}
			switch {
			case err != nil:
				return err
			case a.server != "":
				return f.diffServed(cmd.Context(), from, to.number)
			case from.number != 0:
				return f.diffCheckpoints(cmd.Context(), from, to.number)
			}
			return f.run(cmd.Context(), args[0])
		},
	}
	f.flags(cmd)
	cmd.ValidArgsFunction = f.completeIDs(1)
	cmd.Flags().BoolVar(&f.stat, "stat", false, "print only the paths that changed")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the paths that changed as JSON, one a line")
	return cmd
}

func (f *diffFlags) run(ctx context.Context, id string) (err error) {
	env, err := f.attachSession(ctx, id)
	if ended, ok := errors.AsType[*endedError](err); ok {
		return f.diffCheckpoints(ctx, point{ended.session, 1}, 0)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	err = f.diffNow(ctx, env)
	if errors.Is(err, errors.ErrUnsupported) {
		// The sandbox of a killed program, in its grace: only the session knows how it began.
		if derr := f.diffCheckpoints(ctx, point{env.SessionID(), 1}, 0); !errors.Is(derr, store.ErrNotFound) {
			return derr
		}
	}
	return err
}

// diffNow prints what has changed in a sandbox since it was made.
func (f *diffFlags) diffNow(ctx context.Context, env *environment.Environment) error {
	if !f.stat && !f.asJSON {
		if err := env.Patch(ctx, f.app.out); err != nil {
			return err
		}
	}
	changes, err := env.Changes(ctx)
	switch {
	case err != nil:
		return err
	case f.stat || f.asJSON:
		err = f.print(changes)
	default:
		err = f.app.notePatch(changes, "git"+withoutFilters(changes)+" apply")
	}
	return errors.Join(err, f.app.noteIgnored(env))
}
