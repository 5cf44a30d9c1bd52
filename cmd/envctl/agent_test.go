package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// configFile writes a configuration and returns its path.
func configFile(t *testing.T, cfg map[string]any) string {
	t.Helper()
	data, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return file(t, "config.json", string(data))
}

func TestModesOfAnEditorAreThoseOfTheAgent(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"opencode": "build acceptEdits auto plan docs review", "claude": "default acceptEdits plan dontAsk", "acp": "",
	} {
		config := []byte(`{"agent":{"review":{},"docs":{"mode":"primary"},"sub":{"mode":"subagent"}}}`)
		if got := strings.Join(agentModes(runnerscripts.Agent{Name: name, Config: config}), " "); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestKnownAgentsAreThoseOfTheRunner(t *testing.T) {
	t.Parallel()
	recipes, err := environment.Agents(t.Context(), environment.Config{})
	recipes = slices.DeleteFunc(recipes, func(a environment.AgentInfo) bool { return runnerscripts.IsRegistryAgent(a.Agent) })
	if err != nil || len(recipes) != len(knownAgents) {
		t.Fatalf("%d agents, %v; want %d", len(recipes), err, len(knownAgents))
	}
	for i, a := range knownAgents {
		pkg, program := "", ""
		if r := recipes[i]; len(r.NPM) > 0 {
			pkg, program = r.NPM[0][:strings.LastIndex(r.NPM[0], "@")], r.Program
		}
		if a.name != recipes[i].Agent || a.npm != pkg || pkg != "" && a.name != program {
			t.Errorf("%+v, and the runner says %+v", a, recipes[i])
		}
	}
}
