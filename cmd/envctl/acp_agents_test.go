package main

import (
	"encoding/json"
	"strings"
	"testing"

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
