package environment

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestPermissionsDecideTheSameForAllAgents has each real agent do the same, with the same rules.
func TestPermissionsDecideTheSameForAllAgents(t *testing.T) {
	t.Parallel()
	api := keyedModel(t)
	rules := permission.Rules{
		Allow: []string{"Bash(touch *)", "Write(src/**)"}, Ask: []string{"Bash(touch asked)"}, Deny: []string{"Bash(touch denied)", "Write(src/secret/**)"},
	}
	table := []struct{ prompt, want string }{
		{"run-command `touch allowed`", "allow_once rule once Bash(touch *)"},
		{"run-command `touch denied`", "reject_once rule once Bash(touch denied)"},
		{"run-command `env A=b touch denied`", "reject_once rule once Bash(touch denied)"},
		{"run-command `sh -c 'touch denied'`", "reject_once rule once Bash(touch denied)"},
		{"run-command `touch asked`", "allow_once answered once"},
		{"run-command `mkdir other`", "allow_once answered once"},
		{"write-file `src/a`", "allow_once rule once Write(src/**)"},
		{"write-file `src/secret/a`", "reject_once rule once Write(src/secret/**)"},
	}
	for _, c := range keyedAgents() {
		t.Run(c.name, func(t *testing.T) {
			cfg := c.local(t, api)
			cfg.Agent.PermissionMode, cfg.Permissions = "", rules
			env := create(t, cfg)
			for _, row := range table {
				events, err := collect(t.Context(), env, Query{Prompt: "please " + row.prompt})
				if err != nil {
					t.Fatalf("%s: %v", row.prompt, err)
				}
				if got := ends(t, events); !slices.Equal(got, []string{row.want}) {
					t.Errorf("%s: it ended as %q, want %q; asked: %s", row.prompt, got, row.want, requests(t, events))
				}
			}
			there := workspaceOf(t, env)
			for name, want := range map[string]bool{"allowed": true, "asked": true, "denied": false, "src/a": true, "src/secret/a": false} {
				if _, found := there[name]; found != want {
					t.Errorf("%s is there: %v, want %v", name, found, want)
				}
			}
		})
	}
}

// requests describes the calls that the agent asked for.
func requests(t *testing.T, events []runnerscripts.Event) string {
	t.Helper()
	var all []string
	for _, ev := range events {
		if ev.Type == runnerscripts.TypePermissionRequest {
			req, err := runnerscripts.Payload[PermissionRequest](ev)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%q %s %q %s %v", req.ToolCall.Name, req.ToolCall.Kind, req.ToolCall.Title, req.ToolCall.RawInput, req.ToolCall.Locations))
		}
	}
	return strings.Join(all, "; ")
}
