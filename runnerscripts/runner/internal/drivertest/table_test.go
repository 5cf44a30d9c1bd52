package drivertest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/command"
)

// capability is a row of the table of docs/agents.md.
type capability struct {
	title    string
	features []runnerscripts.Feature
}

func capabilities() []capability {
	row := func(title string, features ...runnerscripts.Feature) capability { return capability{title, features} }
	return []capability{
		row("asks for permission; allowed for the session", runnerscripts.FeaturePermissions, runnerscripts.FeatureAllowAlways),
		row("interrupt", runnerscripts.FeatureInterrupt),
		row("mode and model, also between prompts",
			runnerscripts.FeaturePermissionMode, runnerscripts.FeatureModel, runnerscripts.FeatureSetMode, runnerscripts.FeatureSetModel),
		row("resumes: remembers in a new process and sandbox", runnerscripts.FeatureResume),
		row("shows its thoughts", runnerscripts.FeatureThinking),
		row("tokens of each query", runnerscripts.FeatureUsage),
		row("money of each query, as the agent reports it", runnerscripts.FeatureCost),
		row("images as attachments (PNG, JPEG, GIF, WebP)", runnerscripts.FeatureImages),
		row("PDF documents as attachments", runnerscripts.FeaturePDF),
		row("text files as attachments", runnerscripts.FeatureTextFiles),
		row("`system_prompt`", runnerscripts.FeatureSystemPrompt),
		row("`rules`", runnerscripts.FeatureRules),
		row("`skills`", runnerscripts.FeatureSkills),
		row("`commands`", runnerscripts.FeatureCommands),
		row("`subagents`", runnerscripts.FeatureSubagents),
		row("`hooks`", runnerscripts.FeatureHooks),
		row("`mcp_servers` with a command, bundled ones too", runnerscripts.FeatureMCPStdio),
		row("`mcp_servers` with a URL", runnerscripts.FeatureMCPHTTP),
		row("`plugins`", runnerscripts.FeaturePlugins),
		row("`allowed_tools`", runnerscripts.FeatureAllowedTools),
		row("`denied_tools`", runnerscripts.FeatureDeniedTools),
		row("`max_turns`", runnerscripts.FeatureMaxTurns),
		row("`budget_usd`", runnerscripts.FeatureBudget),
	}
}

// table holds the results of the suite.
type table struct {
	mu    sync.Mutex
	tried map[string]int                            // the number of checked rules, by agent
	shown map[string]map[runnerscripts.Feature]bool // by agent; false if a rule has failed
}

// newTable returns a table that has only the results of package command, whose executors are tested
// by that package and not by this suite.
func newTable() *table {
	t := &table{tried: map[string]int{}, shown: map[string]map[runnerscripts.Feature]bool{"command": {}}}
	for _, f := range (command.Driver{}).Recipe().Supports {
		t.shown["command"][f] = true
	}
	return t
}

// run checks a rule with an agent and records the result.
func (tb *table) run(t *testing.T, s subject, r rule, check func()) {
	defer func() {
		tb.mu.Lock()
		defer tb.mu.Unlock()
		tb.tried[s.name]++
		if tb.shown[s.name] == nil {
			tb.shown[s.name] = map[runnerscripts.Feature]bool{}
		}
		for _, f := range r.features {
			before, tried := tb.shown[s.name][f]
			tb.shown[s.name][f] = !t.Failed() && (before || !tried)
		}
	}()
	check()
}

// String returns the table in Markdown.
func (tb *table) String() string {
	names := []string{"claude", "codex", "opencode", "gemini", "acp", "command"}
	var text strings.Builder
	fmt.Fprintf(&text, "| | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat(":-:|", len(names)))
	for _, row := range capabilities() {
		fmt.Fprintf(&text, "| %s |", row.title)
		for _, name := range names {
			has := 0
			for _, f := range row.features {
				if tb.shown[name][f] {
					has++
				}
			}
			switch has {
			case len(row.features):
				text.WriteString(" ✓ |")
			case 0:
				text.WriteString(" |")
			default:
				text.WriteString(" partly |")
			}
		}
		text.WriteString("\n")
	}
	for _, row := range []struct {
		title   string
		version func(runnerscripts.Recipe) string
	}{
		{"oldest version that works", func(r runnerscripts.Recipe) string { return r.Minimum }},
		{"tested version", func(r runnerscripts.Recipe) string { return r.Version }},
	} {
		fmt.Fprintf(&text, "| %s |", row.title)
		for _, name := range names {
			version := ""
			for _, s := range subjects() {
				if s.name == name && name != "acp" { // which runs the program of another agent
					version = " " + row.version(s.driver.Recipe())
				}
			}
			text.WriteString(version + " |")
		}
		text.WriteString("\n")
	}
	return text.String()
}

// check compares the table with the one in docs/agents.md, or writes it with -update. It does
// nothing unless every rule was checked: a part of the suite yields a part of the table.
func (tb *table) check(t *testing.T) {
	for _, s := range subjects() {
		want := 0
		for _, rule := range rules() {
			if s.keeps(rule) {
				want++
			}
		}
		if tb.tried[s.name] != want {
			return
		}
		for _, f := range s.driver.Recipe().Supports {
			if _, tried := tb.shown[s.name][f]; !tried {
				t.Errorf("no rule shows %s of %s", f, s.name)
			}
			if !slices.ContainsFunc(capabilities(), func(c capability) bool { return slices.Contains(c.features, f) }) {
				t.Errorf("the table has no row for %s", f)
			}
		}
	}
	const file, begin, end = "../../../../docs/agents.md", "<!-- agents -->\n", "<!-- /agents -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	old, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("agents.md has no table between its marks")
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+tb.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != tb.String() {
		t.Errorf("agents.md has\n%sthe suite has shown\n%s", old, tb)
	}
}
