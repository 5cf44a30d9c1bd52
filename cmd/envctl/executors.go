package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/executor"
	schemas "github.com/agentenv-dev/agentenv/executor/schema"
)

func (a *app) newExecutorsCmd() *cobra.Command {
	var config string
	var asJSON, schema bool
	cmd := &cobra.Command{
		Use:   "executors [flags]",
		Short: "List the executor profiles: programs of your own as agents",
		Long: `List the executor profiles that can be given to --agent as executor:NAME: files such as
echo.json with a type and a command, in the folder profiles beside the configuration file,
and in agentenv/profiles in the folder of your configuration (~/.config on Linux).
With --schema print the JSON schema of what an executor reads.`,
		Example: `  envctl executors --config task.yaml
  envctl run --config task.yaml --agent executor:echo "Say hello"
  envctl run --agent executor:report '{"month": "May"}'
  envctl executors --schema > invocation.schema.json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if schema {
				text, err := schemas.Invocation()
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(a.out, "%s\n", text)
				return err
			}
			list, err := environment.Executors(config)
			if err != nil {
				return err
			}
			if asJSON {
				return printLines(a, list)
			}
			if len(list) == 0 && config == "" {
				fmt.Fprintln(a.err, "there are none in the folder of your configuration; give --config FILE for those beside a configuration file")
			}
			rows := [][]term.Span{term.Plains("NAME", "TYPE", "LIFECYCLE", "PATH", "PROBLEM")}
			for _, e := range list {
				rows = append(rows, term.Plains(e.Name, firstOf(e.Type, "-"), firstOf(string(e.Lifecycle), string(executor.OneShot)), e.Path, firstOf(e.Problem, "-")))
			}
			return a.out.Table(rows...)
		},
	}
	cmd.Flags().StringVarP(&config, "config", "c", "", "list those beside this configuration file, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON schema of the invocation, version "+executor.SchemaVersion)
	cmd.MarkFlagsMutuallyExclusive("json", "schema")
	return cmd
}
