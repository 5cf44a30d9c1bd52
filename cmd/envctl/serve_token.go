package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/internal/servertoken"
	"github.com/agentenv-dev/agentenv/server"
)

// roleNames are what --role may be.
var roleNames = []string{string(server.RoleUser), string(server.RoleRunner), string(server.RoleAdmin)}

func (a *app) newServeTokenCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Give tokens for the servers of this user, list and remove them",
		Long: `Give tokens for the servers of this user on this machine, list and remove them. Each belongs
to a name, which owns its sessions, and has a role:

  user    its own sessions, in sandboxes as --config and --sandbox of serve say, which must isolate
          them (docker, modal); it chooses the agent, files and git repositories over https
  runner  also any configuration, and sandboxes of its own: it can do what you can do here
  admin   everything, also with the sessions and sandboxes of others

Only hashes of tokens are stored. A change counts at once, also for servers that run.`,
		Example: `  envctl serve token add --role user alice
  envctl serve token ls
  envctl serve token rm alice`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := knownCommand(cmd, args); err != nil {
				return err
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.newServeTokenAddCmd(), a.newServeTokenListCmd(), a.newServeTokenRemoveCmd())
	return cmd
}

func (a *app) newServeTokenAddCmd() *cobra.Command {
	var role string
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "add [flags] NAME",
		Short: "Make a token and print it, this once",
		Example: `  envctl serve token add --role user alice
  envctl serve token add --role runner --expires 720h ci > ci.token`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			name := args[0]
			switch {
			case name == "" || len(name) > 63 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '=' }):
				return usagef("%q is no name; give one of up to 63 characters, without spaces and '='", name)
			case !slices.Contains(roleNames, role):
				return usagef("--role: %q is no role; %s", role, meant(role, roleNames))
			case lasts < 0:
				return usagef("--expires: %s is negative; give a positive time, or 0 for never", lasts)
			}
			token, err := servertoken.Issue(name, role, lasts)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%w, with 'envctl serve token rm %s'", err, name)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.out, token)
			return err
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&role, "role", string(server.RoleUser), "what the token allows: "+strings.Join(roleNames, ", "))
	fl.DurationVar(&lasts, "expires", 0, "how long it is accepted, as in 720h; 0 for ever")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roleNames, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) newServeTokenListCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Short:   "List the tokens by their names",
		Example: "  envctl serve token ls --json | jq -r .name",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			list, err := servertoken.List()
			if err != nil {
				return err
			}
			if asJSON {
				return printLines(a, list)
			}
			rows := [][]term.Span{term.Plains("NAME", "ROLE", "CREATED", "EXPIRES")}
			for _, i := range list {
				expires := "never"
				if !i.Expires.IsZero() {
					expires = i.Expires.Local().Format(time.DateTime)
				}
				rows = append(rows, term.Plains(i.Name, i.Role, i.Created.Local().Format(time.DateTime), expires))
			}
			return a.out.Table(rows...)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func (a *app) newServeTokenRemoveCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Short:   "Remove tokens; servers refuse them from now on",
		Example: "  envctl serve token rm alice ci",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, names []string) error {
			var errs []error
			for _, name := range names {
				errs = append(errs, servertoken.Revoke(name))
			}
			return errors.Join(errs...)
		},
	}
}

// issued returns the caller behind a token of 'envctl serve token add'.
func issued(_ context.Context, token string) (server.Caller, error) {
	i, err := servertoken.Check(token)
	return server.Caller{Name: i.Name, Role: server.Role(i.Role)}, err
}
