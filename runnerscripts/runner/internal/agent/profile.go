package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// WithProfile returns the agent completed with the fields of the profile that it does not set.
func WithProfile(a runnerscripts.Agent, p runnerscripts.Profile) runnerscripts.Agent {
	if a.Model == "" {
		a.Model = p.Model
	}
	if a.PermissionMode == "" {
		a.PermissionMode = p.PermissionMode
	}
	if a.MaxTurns == 0 {
		a.MaxTurns = p.MaxTurns
	}
	a.SystemPrompt = strings.TrimSpace(p.SystemPrompt + "\n\n" + a.SystemPrompt)
	return a
}

// CheckFeatures returns an error that names a requested feature that the agent does not
// support.
func CheckFeatures(r runnerscripts.Recipe, a runnerscripts.Agent, p runnerscripts.Profile) error {
	stdio := func(m runnerscripts.MCPServer) bool { return len(m.Command) > 0 }
	http := func(m runnerscripts.MCPServer) bool { return m.URL != "" }
	wanted := []struct {
		feature runnerscripts.Feature
		field   string
		asked   bool
	}{
		{runnerscripts.FeatureModel, "model", a.Model != ""},
		{runnerscripts.FeaturePermissionMode, "permission_mode", a.PermissionMode != ""},
		{runnerscripts.FeatureMaxTurns, "max_turns", a.MaxTurns != 0},
		{runnerscripts.FeatureSystemPrompt, "system_prompt", a.SystemPrompt != ""},
		{runnerscripts.FeatureBudget, "profile.budget_usd", p.BudgetUSD != 0},
		{runnerscripts.FeatureAllowedTools, "profile.allowed_tools", len(p.AllowedTools) > 0},
		{runnerscripts.FeatureDeniedTools, "profile.denied_tools", len(p.DeniedTools) > 0},
		{runnerscripts.FeatureRules, "profile.rules", len(p.Rules) > 0},
		{runnerscripts.FeatureSkills, "profile.skills", len(p.Skills) > 0},
		{runnerscripts.FeatureCommands, "profile.commands", len(p.Commands) > 0},
		{runnerscripts.FeatureSubagents, "profile.subagents", len(p.Subagents) > 0},
		{runnerscripts.FeatureHooks, "profile.hooks", len(p.Hooks) > 0},
		{runnerscripts.FeatureMCPStdio, "profile.mcp_servers with a command", slices.ContainsFunc(p.MCPServers, stdio)},
		{runnerscripts.FeatureMCPHTTP, "profile.mcp_servers with a url", slices.ContainsFunc(p.MCPServers, http)},
		{runnerscripts.FeaturePlugins, "profile.plugins", len(p.Plugins) > 0},
	}
	for _, w := range wanted {
		if w.asked && !slices.Contains(r.Supports, w.feature) {
			return Unsupported("leave out %s: the agent %q has nothing for it (it has: %s)", w.field, r.Agent, list(r.Supports))
		}
	}
	return nil
}

// CheckFrontmatter returns an error that names the frontmatter keys that a program would
// ignore. where is the part of the profile, such as "profile.commands[0]".
func CheckFrontmatter(program, where string, front map[string]any, known ...string) error {
	for _, key := range slices.Sorted(maps.Keys(front)) {
		if !slices.Contains(known, key) {
			return Unsupported("leave out %s.frontmatter.%s: %s has nothing for it (it has: %s)",
				where, key, program, cmp.Or(strings.Join(known, ", "), "nothing of the kind"))
		}
	}
	return nil
}

func list(features []runnerscripts.Feature) string {
	if len(features) == 0 {
		return "nothing of the kind"
	}
	names := make([]string, len(features))
	for i, f := range features {
		names[i] = fmt.Sprint(f)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
