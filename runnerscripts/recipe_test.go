package runnerscripts

import (
	"errors"
	"strings"
	"testing"
)

func TestAVersionBelowTheMinimumIsTooOld(t *testing.T) {
	r := Recipe{Minimum: "2.1.250"}
	for version, want := range map[string]bool{
		"2.1.197": true, "2.1.249 (Claude Code)": true, "2.0.999": true, "1.99": true, "2.1": true, "2.1.250-beta": false,
		"2.1.250": false, "2.1.1000": false, "2.10.0": false, "3.0": false, "codex-cli 2.2": false, "unknown": false, "": false,
	} {
		if got := r.TooOld(version); got != want {
			t.Errorf("%q is too old: %v", version, got)
		}
	}
	if (Recipe{}).TooOld("0.0.1") || (Recipe{Minimum: "1.0.0"}).TooOld("1.0") {
		t.Error("a version is too old for no minimum, or for one with zeros")
	}
}

func TestWhatTheAgentSaysComesBeforeTheProfile(t *testing.T) {
	p := Profile{Model: "a", PermissionMode: "plan", MaxTurns: 3, SystemPrompt: "First."}
	all := Recipe{Supports: []Feature{FeatureModel, FeaturePermissionMode, FeatureMaxTurns, FeatureSystemPrompt}}
	got, err := all.Resolve(Agent{Model: "b", SystemPrompt: "Second."}, p)
	if err != nil || got.Model != "b" || got.PermissionMode != "plan" || got.MaxTurns != 3 || got.SystemPrompt != "First.\n\nSecond." {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestEveryFieldThatAnAgentHasNothingForIsRefusedByName(t *testing.T) {
	for field, p := range map[string]Profile{
		"model":                              {Model: "m"},
		"permission_mode":                    {PermissionMode: "plan"},
		"max_turns":                          {MaxTurns: 1},
		"system_prompt":                      {SystemPrompt: "x"},
		"profile.budget_usd":                 {BudgetUSD: 1},
		"profile.allowed_tools":              {AllowedTools: []string{"x"}},
		"profile.denied_tools":               {DeniedTools: []string{"x"}},
		"profile.rules":                      {Rules: []Rule{{}}},
		"profile.skills":                     {Skills: []Skill{{}}},
		"profile.commands":                   {Commands: []SlashCommand{{}}},
		"profile.subagents":                  {Subagents: []Subagent{{}}},
		"profile.hooks":                      {Hooks: []Hook{{}}},
		"profile.mcp_servers with a command": {MCPServers: []MCPServer{{Command: []string{"x"}}}},
		"profile.mcp_servers with a url":     {MCPServers: []MCPServer{{URL: "http://x"}}},
		"profile.plugins":                    {Plugins: []Plugin{{}}},
	} {
		t.Run(field, func(t *testing.T) {
			_, err := Recipe{Agent: "some"}.Resolve(Agent{}, p)
			failure, ok := errors.AsType[*ScriptFailure](err)
			if !ok || failure.Code != FailUnsupported || !strings.Contains(failure.Message, field+":") || !strings.Contains(failure.Message, `"some"`) {
				t.Errorf("%v", err)
			}
			feature := Feature(strings.TrimPrefix(field, "profile."))
			switch field {
			case "profile.mcp_servers with a command":
				feature = FeatureMCPStdio
			case "profile.mcp_servers with a url":
				feature = FeatureMCPHTTP
			}
			if _, err := (Recipe{Supports: []Feature{feature}}).Resolve(Agent{}, p); err != nil {
				t.Errorf("supported: %v", err)
			}
		})
	}
}
