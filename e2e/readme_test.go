package e2e_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// capabilities are the rows of the table of docs/agents.md.
func capabilities() []struct {
	title    string
	features []runnerscripts.Feature
} {
	return []struct {
		title    string
		features []runnerscripts.Feature
	}{
		{"asks for permission; allowed for the session", []runnerscripts.Feature{runnerscripts.FeaturePermissions, runnerscripts.FeatureAllowAlways}},
		{"interrupt", []runnerscripts.Feature{runnerscripts.FeatureInterrupt}},
		{"mode and model, also between prompts", []runnerscripts.Feature{
			runnerscripts.FeaturePermissionMode, runnerscripts.FeatureModel, runnerscripts.FeatureSetMode, runnerscripts.FeatureSetModel,
		}},
		{"remembers in a new process and sandbox", []runnerscripts.Feature{runnerscripts.FeatureResume}},
		{"shows its thoughts", []runnerscripts.Feature{runnerscripts.FeatureThinking}},
		{"tokens of each query", []runnerscripts.Feature{runnerscripts.FeatureUsage}},
		{"money of each query", []runnerscripts.Feature{runnerscripts.FeatureCost}},
		{"`system_prompt`", []runnerscripts.Feature{runnerscripts.FeatureSystemPrompt}},
		{"`rules`", []runnerscripts.Feature{runnerscripts.FeatureRules}},
		{"`skills`", []runnerscripts.Feature{runnerscripts.FeatureSkills}},
		{"`commands`", []runnerscripts.Feature{runnerscripts.FeatureCommands}},
		{"`subagents`", []runnerscripts.Feature{runnerscripts.FeatureSubagents}},
		{"`hooks`", []runnerscripts.Feature{runnerscripts.FeatureHooks}},
		{"`mcp_servers` with a command, bundled ones too", []runnerscripts.Feature{runnerscripts.FeatureMCPStdio}},
		{"`mcp_servers` with a URL", []runnerscripts.Feature{runnerscripts.FeatureMCPHTTP}},
		{"`plugins`", []runnerscripts.Feature{runnerscripts.FeaturePlugins}},
		{"`allowed_tools`", []runnerscripts.Feature{runnerscripts.FeatureAllowedTools}},
		{"`denied_tools`", []runnerscripts.Feature{runnerscripts.FeatureDeniedTools}},
		{"`max_turns`", []runnerscripts.Feature{runnerscripts.FeatureMaxTurns}},
		{"`budget_usd`", []runnerscripts.Feature{runnerscripts.FeatureBudget}},
	}
}

// TestTheTableOfAgentsIsWhatTheAgentsSay: that is in turn what the tests of the drivers
// prove with the real programs, and everything else is refused.
func TestTheTableOfAgentsIsWhatTheAgentsSay(t *testing.T) {
	agents, err := environment.Agents(t.Context(), environment.Config{})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"claude", "codex", "opencode", "gemini", "acp", "command"}
	var table strings.Builder
	fmt.Fprintf(&table, "| | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat(":-:|", len(names)))
	shown := map[runnerscripts.Feature]bool{}
	for _, row := range capabilities() {
		fmt.Fprintf(&table, "| %s |", row.title)
		for _, name := range names {
			i := slices.IndexFunc(agents, func(a environment.AgentInfo) bool { return a.Agent == name })
			has := 0
			for _, f := range row.features {
				shown[f] = true
				if slices.Contains(agents[i].Supports, f) {
					has++
				}
			}
			switch has {
			case len(row.features):
				table.WriteString(" ✓ |")
			case 0:
				table.WriteString(" |")
			default:
				table.WriteString(" partly |")
			}
		}
		table.WriteString("\n")
	}
	for _, a := range agents {
		for _, f := range a.Supports {
			if !shown[f] {
				t.Errorf("the table has no row for %s", f)
			}
		}
	}
	const file, begin, end = "../docs/agents.md", "<!-- agents -->\n", "<!-- /agents -->"
	readme, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(readme), begin)
	old, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("agents.md has no table between its marks")
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != table.String() {
		t.Errorf("agents.md has\n%swant\n%s", old, table.String())
	}
}
