package runnerscripts

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// PrintRecipe is the envrunner command that prints a [Result] whose data is a [Recipe]. Its
// argument is the name of an agent; without one the data is a list of all recipes. The command
// reads no input.
const PrintRecipe = "recipe"

// Recipe says what an agent can do, and what it needs in a sandbox. Images are built, and live
// sandboxes completed, from it. All of it is pinned to what the runner was tested with, or to what
// the ACP registry says. A recipe with an empty Program is complete: the runner implements the agent
// itself, or the configuration names its program. One with a Program and no packages is an agent
// that the user installs.
type Recipe struct {
	Agent string `json:"agent"`
	// Program is the command that starts the agent. If it is in PATH, the agent is installed.
	Program string `json:"program,omitempty"`
	// Version is the version to install.
	Version string `json:"version,omitempty"`
	// Minimum is the oldest version that is known to work. setup-session refuses an older one with
	// FailAgentOld. Empty means no minimum.
	Minimum string `json:"minimum,omitempty"`
	// Debian names the packages of a Debian system that the agent uses.
	Debian []string `json:"debian,omitempty"`
	// NPM names the npm packages to install globally, each as name@version.
	NPM []string `json:"npm,omitempty"`
	// Supports lists what the agent can do beyond answering prompts. Any other feature is refused
	// with FailUnsupported.
	Supports []Feature `json:"supports,omitempty"`
}

// Resolve returns the agent completed with the fields of the profile that it does not set. If one of them asks for what the agent
// does not support, the error is a [*ScriptFailure] with FailUnsupported, which names it.
func (r Recipe) Resolve(a Agent, p Profile) (Agent, error) {
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
	stdio := func(m MCPServer) bool { return len(m.Command) > 0 }
	http := func(m MCPServer) bool { return m.URL != "" }
	wanted := []struct {
		feature Feature
		field   string
		asked   bool
	}{
		{FeatureModel, "model", a.Model != ""},
		{FeaturePermissionMode, "permission_mode", a.PermissionMode != ""},
		{FeatureMaxTurns, "max_turns", a.MaxTurns != 0},
		{FeatureSystemPrompt, "system_prompt", a.SystemPrompt != ""},
		{FeatureBudget, "profile.budget_usd", p.BudgetUSD != 0},
		{FeatureAllowedTools, "profile.allowed_tools", len(p.AllowedTools) > 0},
		{FeatureDeniedTools, "profile.denied_tools", len(p.DeniedTools) > 0},
		{FeatureRules, "profile.rules", len(p.Rules) > 0},
		{FeatureSkills, "profile.skills", len(p.Skills) > 0},
		{FeatureCommands, "profile.commands", len(p.Commands) > 0},
		{FeatureSubagents, "profile.subagents", len(p.Subagents) > 0},
		{FeatureHooks, "profile.hooks", len(p.Hooks) > 0},
		{FeatureMCPStdio, "profile.mcp_servers with a command", slices.ContainsFunc(p.MCPServers, stdio)},
		{FeatureMCPHTTP, "profile.mcp_servers with a url", slices.ContainsFunc(p.MCPServers, http)},
		{FeaturePlugins, "profile.plugins", len(p.Plugins) > 0},
	}
	for _, w := range wanted {
		if w.asked && !slices.Contains(r.Supports, w.feature) {
			return a, &ScriptFailure{Code: FailUnsupported, Message: fmt.Sprintf("leave out %s: the agent %q has nothing for it (it has: %s)", w.field, r.Agent, listed(r.Supports))}
		}
	}
	return a, nil
}

func listed(features []Feature) string {
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

// TooOld reports whether version, as the agent's program prints it, is older than Minimum. A text
// without a version is not too old.
func (r Recipe) TooOld(version string) bool {
	has, least := versionNumbers(version), versionNumbers(r.Minimum)
	if has == nil || least == nil {
		return false
	}
	for i, n := range least {
		if i >= len(has) || has[i] != n {
			return i >= len(has) && n > 0 || i < len(has) && has[i] < n
		}
	}
	return false
}

var versionPattern = regexp.MustCompile(`\d+(\.\d+)+`)

// versionNumbers returns the parts of the first version in a text.
func versionNumbers(text string) []int {
	var list []int
	for part := range strings.SplitSeq(versionPattern.FindString(text), ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil
		}
		list = append(list, n)
	}
	return list
}
