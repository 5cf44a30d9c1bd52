package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// agentFlags are the flags that choose and configure the agent of a new sandbox.
type agentFlags struct {
	agent, model, mode, profile, scenario string
	ruleFlags
	delegateFlags
}

func (f *agentFlags) flags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVarP(&f.agent, "agent", "a", "", "agent: "+strings.Join(ownAgents(), ", ")+`, acp:NAME or executor:NAME (default "script"); see 'envctl agents' and 'envctl executors'`)
	fl.StringVarP(&f.model, "model", "m", "", "model, as the agent names it")
	fl.StringVar(&f.mode, "mode", "", "the agent's own permission mode, for claude: default, acceptEdits, plan")
	f.ruleFlags.flags(cmd)
	f.delegateFlags.flags(cmd)
	fl.StringVar(&f.profile, "profile", "", "what makes the agent a particular one: a name of 'envctl profiles', or the path of a file (YAML or JSON) or of a folder as Claude Code has it, as in ./reviewer")
	fl.StringVar(&f.scenario, "scenario", "", "scenario file (JSON) of the script agent; its format: go doc github.com/agentenv-dev/agentenv/runnerscripts.Scenario")
	_ = cmd.RegisterFlagCompletionFunc("agent", cobra.FixedCompletions(agentNames(), cobra.ShellCompDirectiveNoFileComp))
}

// knownAgents are the agents that this version's runner supports, by name.
var knownAgents = []struct {
	name  string   // also of its program
	npm   string   // the package of the program; empty if the agent has no program of its own
	modes []string // the permission modes, the initial one first; nil if only the agent knows them
}{
	{name: "acp"},
	{"claude", "@anthropic-ai/claude-code", []string{"default", "acceptEdits", "plan", "dontAsk"}},
	{"codex", "@openai/codex", []string{"untrusted", "plan", "read-only", "auto", "full-access"}},
	{name: "command"},
	{"gemini", "@google/gemini-cli", []string{"default", "autoEdit", "yolo", "plan"}},
	{"opencode", "opencode-ai", []string{"build", "acceptEdits", "auto", "plan"}},
	{name: "script", modes: []string{"default", "acceptEdits", "bypassPermissions"}},
}

// ownAgents returns the names of knownAgents.
func ownAgents() []string {
	var names []string
	for _, a := range knownAgents {
		names = append(names, a.name)
	}
	return names
}

// agentNames returns the names of all agents: its own and those of the ACP registry.
func agentNames() []string { return slices.Concat(ownAgents(), environment.RegistryAgents()) }

// agentModes returns the permission modes of an agent, the initial one first. It returns nil if
// only the agent knows them.
func agentModes(a runnerscripts.Agent) []string {
	for _, known := range knownAgents {
		switch {
		case known.name != a.Name:
		case a.Name == "opencode":
			return slices.Concat(known.modes, ownModes(a.Config))
		default:
			return slices.Clone(known.modes)
		}
	}
	return nil
}

// ownModes returns the agents that an OpenCode configuration defines, without the subagents.
// OpenCode treats them as modes.
func ownModes(config json.RawMessage) []string {
	var c struct {
		Agent map[string]struct {
			Mode string `json:"mode"`
		} `json:"agent"`
	}
	_ = json.Unmarshal(config, &c) // the agent reports an invalid configuration
	var names []string
	for name, a := range c.Agent {
		if a.Mode != "subagent" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// resolveExecutor replaces the name of an executor profile by its agent. file is the configuration
// file; it may be empty.
func resolveExecutor(file string, cfg *environment.Config) error {
	name, ok := strings.CutPrefix(cfg.Agent.Name, environment.ExecutorPrefix)
	if !ok {
		return nil
	}
	found, err := environment.FindExecutor(name, file)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	cfg.Agent.Name, cfg.Agent.Command, cfg.Agent.Config = found.Name, nil, found.Config
	return nil
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
	if err := resolveExecutor(file, cfg); err != nil {
		return err
	}
	if !slices.Contains(agentNames(), cfg.Agent.Name) {
		return noAgent(cfg.Agent.Name, runnerscripts.RegistryPrefix+"NAME", environment.ExecutorPrefix+"NAME")
	}
	if err := errors.Join(f.checkMode(cfg.Agent), f.addTo(&cfg.Permissions), f.delegateFlags.apply(&cfg.Delegation)); err != nil {
		return err
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
	if cfg.Agent.Name != "script" {
		return usagef("--scenario: the agent %s plays no scenario; leave out --scenario, or choose the agent script", cfg.Agent.Name)
	}
	data, err := input.ReadStream(ctx, f.scenario, maxInput)
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		return usagef("--scenario: %w; give an existing file", err)
	}
	if _, err := runnerscripts.ParseScenario(data); err != nil {
		return usagef("--scenario: %s: %w; its format is that of go doc github.com/agentenv-dev/agentenv/runnerscripts.Scenario", f.scenario, err)
	}
	cfg.Agent.Config = data
	return nil
}

// checkMode refuses a mode of permissions in place of the agent's own.
func (f *agentFlags) checkMode(a environment.Agent) error {
	modes := agentModes(a)
	rules := permission.Mode(a.PermissionMode)
	if rules != permission.ModeAsk && rules != permission.ModeEdit || len(modes) == 0 || slices.Contains(modes, a.PermissionMode) {
		return nil
	}
	setting := "agent.permission_mode"
	if f.mode != "" {
		setting = "--mode"
	}
	return usagef("%s: %q is a mode of permissions, and the agent %s has %s; choose one of these, or set permissions.mode in the configuration: "+
		"it decides with the rules of --allow and --deny", setting, rules, a.Name, strings.Join(modes, ", "))
}
