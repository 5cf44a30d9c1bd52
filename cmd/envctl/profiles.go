package main

import (
	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
)

func (a *app) newProfilesCmd() *cobra.Command {
	var config string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "profiles [flags]",
		Short: "List the profiles that can be used by name",
		Long: `List the profiles that --profile, and "profile:" in a configuration file, take by their
name: files such as reviewer.yaml and folders, in the folder profiles beside the
configuration file, and in agentenv/profiles in the folder of your configuration
(~/.config on Linux).`,
		Example: `  envctl profiles
  envctl profiles --config task.yaml
  envctl run --profile reviewer --agent claude "Review the last commit"`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			list, err := environment.Profiles(config)
			if err != nil {
				return err
			}
			if asJSON {
				return printLines(a, list)
			}
			rows := [][]term.Span{term.Plains("NAME", "PATH", "DESCRIPTION")}
			for _, p := range list {
				rows = append(rows, term.Plains(p.Name, p.Path, firstOf(firstOf(p.Problem, p.Description), "-")))
			}
			return a.out.Table(rows...)
		},
	}
	cmd.Flags().StringVarP(&config, "config", "c", "", "list those beside this configuration file, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}
