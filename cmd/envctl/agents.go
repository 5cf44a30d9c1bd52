package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// agentRow is the output of agents for one agent.
type agentRow struct {
	environment.AgentInfo
	// Installed is the version that the sandbox has; empty if it has none.
	Installed string `json:"installed,omitempty"`
}

func (a *app) newAgentsCmd() *cobra.Command {
	t := &target{app: a}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "agents [flags] [ID]",
		Short: "List the agents: what is installed, and what they can do",
		Long: `List the agents that can be given to --agent: the version that is installed on this
machine, or in the sandbox ID, the version that agentenv is tested with, and what of a
profile the agent takes. With --json also what it can do in a conversation, what it needs
in a sandbox, and all this of the agents of the ACP registry, whose version is that of the
registry. An agent that has no --version is installed at the version "unknown".`,
		Example: `  envctl agents
  envctl agents 3f2a
  envctl agents --json | jq -r 'select(.supports | index("hooks")).agent'
  envctl agents install codex 3f2a`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := t.agents(cmd.Context(), args, asJSON)
			if list == nil {
				return err
			}
			if asJSON {
				return errors.Join(err, printLines(a, list))
			}
			rows := [][]term.Span{term.Plains("AGENT", "INSTALLED", "TESTED", "PROFILE")}
			for _, r := range list {
				installed := firstOf(r.Installed, "-")
				if r.Program == "" && r.Version != "" {
					installed = "built in"
				}
				rows = append(rows, term.Plains(r.Agent, installed, firstOf(r.Version, "-"), firstOf(profileFields(r.Supports), "-")))
			}
			var registered []string
			for _, name := range environment.RegistryAgents() {
				registered = append(registered, strings.TrimPrefix(name, runnerscripts.RegistryPrefix))
			}
			return errors.Join(err, a.out.Table(rows...),
				a.out.Table(term.Plains("acp:NAME", "an agent of the ACP registry: "+strings.Join(registered, ", "))))
		},
	}
	t.flags(cmd)
	cmd.ValidArgsFunction = t.completeIDs(1)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.AddCommand(a.newAgentsInstallCmd())
	return cmd
}

func (a *app) newAgentsInstallCmd() *cobra.Command {
	t := &target{app: a}
	cmd := &cobra.Command{
		Use:   "install [flags] AGENT ID",
		Short: "Install an agent in a sandbox",
		Long: `Install an agent in a sandbox, at the version that agentenv is tested with, from the
registries of Debian and npm, which the sandbox must reach. For many sandboxes an image is
quicker: see 'envctl image build'. An agent of the ACP registry (acp:NAME) is installed at
the version that the registry names, unless its program is there at any version.`,
		Example: `  id=$(envctl create --image node:22-bookworm-slim)
  envctl agents install codex $id
  envctl agents $id`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return t.installAgent(cmd.Context(), args[0], args[1]) },
	}
	t.flags(cmd)
	t.envFlag(cmd)
	ids := t.completeIDs(2)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, to string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return agentNames(), cobra.ShellCompDirectiveNoFileComp
		}
		return ids(cmd, args, to)
	}
	return cmd
}

// noAgent returns the error for a name that is not an agent's. more are further names that are possible.
func noAgent(name string, more ...string) error {
	registered := environment.RegistryAgents()
	advice := meant(name, slices.Concat(ownAgents(), more))
	switch {
	case slices.Contains(registered, runnerscripts.RegistryPrefix+name):
		advice = "did you mean " + runnerscripts.RegistryPrefix + name + "?"
	case strings.HasPrefix(name, runnerscripts.RegistryPrefix):
		advice = meant(name, registered)
	}
	return usagef("there is no agent %q; %s", name, advice)
}

func (t *target) installAgent(ctx context.Context, name, id string) (err error) {
	cfg, found, err := t.locate(ctx, id)
	if err != nil {
		return err
	}
	cfg.Progress = t.app.newProgress()
	all, err := environment.Agents(ctx, cfg)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(a environment.AgentInfo) bool { return a.Agent == name })
	if i < 0 {
		return noAgent(name)
	}
	env, err := environment.Attach(ctx, cfg, found.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	if err := env.InstallAgent(ctx, all[i]); err != nil {
		return err
	}
	v, err := env.AgentVersion(ctx, all[i])
	if errors.Is(err, errors.ErrUnsupported) {
		_, err = fmt.Fprintln(t.app.out, name, "needs nothing")
		return err
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(t.app.out, name, v)
	return err
}

// agents returns the agents with their versions in a sandbox: the one with the ID in args, or a
// new one. Those of the ACP registry are left out unless registered is set. If an agent cannot
// report its version, the list comes with an error.
func (t *target) agents(ctx context.Context, args []string, registered bool) (_ []agentRow, err error) {
	var env *environment.Environment
	var cfg environment.Config
	if len(args) > 0 {
		var found location
		if cfg, found, err = t.locate(ctx, args[0]); err != nil {
			return nil, err
		}
		env, err = environment.Attach(ctx, cfg, found.id)
	} else {
		if cfg, err = t.loadNew(ctx, &makeFlags{}); err != nil {
			return nil, err
		}
		env, err = environment.Create(ctx, cfg)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	all, err := environment.Agents(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if !registered {
		all = slices.DeleteFunc(all, func(a environment.AgentInfo) bool { return runnerscripts.IsRegistryAgent(a.Agent) })
	}
	rows, errs := make([]agentRow, len(all)), make([]error, len(all))
	var asking sync.WaitGroup
	for i, info := range all {
		rows[i].AgentInfo = info
		asking.Go(func() {
			v, err := env.AgentVersion(ctx, info)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errors.ErrUnsupported) {
				errs[i] = err
			}
			rows[i].Installed = v
		})
	}
	asking.Wait()
	return rows, errors.Join(errs...)
}

// profileFields returns the fields of a profile that an agent supports.
func profileFields(features []runnerscripts.Feature) string {
	var fields []string
	for _, f := range features {
		if ofProfile(f) {
			fields = append(fields, string(f))
		}
	}
	slices.Sort(fields)
	return strings.Join(fields, ", ")
}

// ofProfile reports whether a feature is a field of a profile.
func ofProfile(f runnerscripts.Feature) bool {
	switch f {
	case runnerscripts.FeaturePermissions, runnerscripts.FeatureAllowAlways, runnerscripts.FeatureInterrupt,
		runnerscripts.FeatureSetMode, runnerscripts.FeatureSetModel, runnerscripts.FeatureResume,
		runnerscripts.FeatureThinking, runnerscripts.FeatureUsage, runnerscripts.FeatureCost:
		return false
	}
	return true
}
