package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
)

func (a *app) newCreateCmd() *cobra.Command {
	t := &target{app: a}
	w, m, i := &workspaceFlags{}, &makeFlags{}, &identityFlags{}
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Make a sandbox and print its ID",
		Long: `Make a sandbox, with the workspace of the flags and the configuration, and leave it
there. End it with 'envctl rm ID'.`,
		Example: `  id=$(envctl create --folder .)
  envctl exec $id -- sh -c 'echo hello > file'
  envctl rm $id
  envctl create --name web --folder . && envctl exec web -- ls
  envctl create --image golang:1.26 --network none --folder .`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := t.loadNew(cmd.Context(), m)
			if err != nil {
				return err
			}
			given, err := w.sources()
			if err != nil {
				return err
			}
			cfg.Workspace = append(cfg.Workspace, given...)
			if err := i.apply(&cfg); err != nil {
				return err
			}
			cfg.Sandbox.Keep = true
			env, err := environment.Create(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.out, env.ID())
			return errors.Join(i.write(env.ID()), err, env.Close())
		},
	}
	t.flags(cmd)
	w.flags(cmd)
	m.flags(cmd)
	i.flags(cmd)
	return cmd
}

func (a *app) newRemoveCmd() *cobra.Command {
	t := &target{app: a}
	cmd := &cobra.Command{
		Use:   "rm [flags] ID...",
		Short: "End sandboxes and all that runs in them",
		Long: `End sandboxes and all that runs in them. ID is that of a sandbox, or of a session whose sandbox
is kept. The session stays stored, with its last checkpoint: 'envctl attach' goes on with it,
'envctl sessions rm' removes it.`,
		Example: "  envctl rm 3f2a",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			var errs []error
			for _, id := range ids {
				_, found, err := t.locateSession(cmd.Context(), id)
				if err == nil {
					// Remove the sandbox even if its own record is damaged: processes in the
					// sandbox may have changed the record.
					err = environment.Remove(cmd.Context(), found.sandbox, found.id)
				}
				if err == nil {
					err = a.pointToLeft(cmd.Context(), found)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	t.flags(cmd)
	cmd.ValidArgsFunction = t.completeIDs(0)
	return cmd
}
