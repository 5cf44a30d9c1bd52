package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/internal/answers"
	"github.com/agentenv-dev/agentenv/internal/visible"
)

func (a *app) newPermissionsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "permissions",
		Short: "List and remove the answers that hold always",
		Long: `List and remove the answers to permission requests that were given with always or never. One
holds for one call, in later sessions of the same user with the same folders or repositories, the
same agent, and a sandbox that is isolated as much. A deny rule wins over it. With --server they
are those of this user at the server; an admin has those of all.`,
		Example: `  envctl permissions ls
  envctl permissions rm 3f2a9c01d77e`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := knownCommand(cmd, args); err != nil {
				return err
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.newPermissionsListCmd(), a.newPermissionsRemoveCmd())
	return cmd
}

func (a *app) newPermissionsListCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Short:   "List the stored answers",
		Example: "  envctl permissions ls --json | jq -r .call",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.storedAnswers(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printLines(a, list)
			}
			rows := [][]term.Span{term.Plains("ID", "ANSWER", "CALL", "PROJECT", "AGENT", "USER", "SINCE")}
			for _, s := range list {
				answer := answerNever
				if s.Allow {
					answer = answerAlways
				}
				rows = append(rows, term.Plains(s.ID, answer, visible.Line(s.Tool+" "+s.Call), s.Project, s.Agent, firstOf(s.User, "-"), s.Time.Local().Format(time.DateTime)))
			}
			return a.out.Table(rows...)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func (a *app) newPermissionsRemoveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rm ID...",
		Short:   "Remove stored answers, so that the agent asks again",
		Example: "  envctl permissions rm 3f2a9c01d77e",
		Args:    cobra.MinimumNArgs(1),
		RunE:    func(cmd *cobra.Command, ids []string) error { return a.removeAnswers(cmd.Context(), ids) },
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var ids []cobra.Completion
		list, _ := a.storedAnswers(cmd.Context()) // without it there is nothing to complete
		for _, s := range list {
			if !slices.Contains(args, s.ID) {
				ids = append(ids, cobra.CompletionWithDesc(s.ID, visible.Line(s.Tool+" "+s.Call)))
			}
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// storedAnswers returns the stored answers of this machine, or of the server.
func (a *app) storedAnswers(ctx context.Context) ([]answers.Answer, error) {
	if a.server == "" {
		return answers.List()
	}
	c, err := a.client()
	if err != nil {
		return nil, err
	}
	list, err := c.Permissions(ctx)
	return list, explainServer(err)
}

func (a *app) removeAnswers(ctx context.Context, ids []string) error {
	if a.server == "" {
		return answers.Remove(ids...)
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, explainServer(c.RemovePermission(ctx, id)))
	}
	return errors.Join(errs...)
}
