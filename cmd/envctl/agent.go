package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/input"
)

// agentFlags are the flags that choose and configure the agent of a new sandbox.
type agentFlags struct {
	agent, model, mode, profile, scenario string
}

func (f *agentFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVarP(&f.agent, "agent", "a", "", "agent: "+strings.Join(agentNames(), ", ")+` (default "script"); see 'envctl agents'`)
	fl.StringVarP(&f.model, "model", "m", "", "model, as the agent names it")
	fl.StringVar(&f.mode, "mode", "", "the agent's permission mode, for claude: default, acceptEdits, plan")
	fl.StringVar(&f.profile, "profile", "", "what makes the agent a particular one: a name of 'envctl profiles', or the path of a file (YAML or JSON) or of a folder as Claude Code has it, as in ./reviewer")
	fl.StringVar(&f.scenario, "scenario", "", "scenario file (JSON) of the script agent; its format: go doc github.com/agentenv-dev/agentenv/runnerscripts.Scenario")
	_ = cmd.RegisterFlagCompletionFunc("agent", cobra.FixedCompletions(agentNames(), cobra.ShellCompDirectiveNoFileComp))
}

// agentNames returns the names of the agents that this version's runner supports.
func agentNames() []string {
	return []string{"acp", "claude", "codex", "command", "gemini", "opencode", "script"}
}

// apply overrides the configuration with the flags. file is the path of the configuration file,
// beside which profiles are found; it may be empty.
func (f *agentFlags) apply(ctx context.Context, file string, cfg *environment.Config) error {
	set := func(v *string, flag string) {
		if flag != "" {
			*v = flag
		}
	}
	set(&cfg.Agent.Name, f.agent)
	set(&cfg.Agent.Model, f.model)
	set(&cfg.Agent.PermissionMode, f.mode)
	if cfg.Agent.Name == "" {
		cfg.Agent.Name = "script"
	}
	if !slices.Contains(agentNames(), cfg.Agent.Name) {
		return noAgent(cfg.Agent.Name)
	}
	if f.profile != "" {
		var err error
		if cfg.Profile, err = environment.FindProfile(f.profile, file); err != nil {
			return &exitError{code: exitUsage, err: err}
		}
	}
	if f.scenario == "" {
		return nil
	}
	data, err := input.ReadStream(ctx, f.scenario, maxInput)
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		return usagef("--scenario: %w; give an existing file", err)
	}
	if !json.Valid(data) {
		return usagef("--scenario: %s is no JSON; give a JSON file", f.scenario)
	}
	cfg.Agent.Config = data
	return nil
}
