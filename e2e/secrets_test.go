package e2e_test

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives/local"
)

// TestTheKeyOfNoAgentIsInItsEvents uses an API that repeats a rejected key in its error. No
// event and no error may contain the key; the address to check stays.
func TestTheKeyOfNoAgentIsInItsEvents(t *testing.T) {
	api := model(t, "")
	for _, a := range realAgents(t) {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			cfg := a.config(api.URL)
			for _, name := range slices.Collect(maps.Keys(cfg.Agent.Env)) {
				if strings.HasSuffix(name, "_KEY") {
					cfg.Agent.Env[name] = "sk-QASECRET-123456"
				}
			}
			cfg.Raw = true
			cfg.Sandbox = environment.Sandbox{Type: "local", Local: local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}}
			env, err := environment.Create(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := env.Close(); err != nil {
					t.Error(err)
				}
			}()
			var said strings.Builder
			var failed error
			for ev, err := range env.ExecuteQuery(t.Context(), environment.Query{Prompt: "please echo-key"}) {
				if err != nil {
					failed = err
					continue
				}
				line, err := json.Marshal(ev)
				if err != nil {
					t.Fatal(err)
				}
				said.Write(append(line, '\n'))
				if strings.Contains(string(line), "QASECRET") {
					t.Errorf("an event has the key: %s", line)
				}
			}
			if failed == nil || strings.Contains(failed.Error(), "QASECRET") {
				t.Errorf("the error is %v", failed)
			}
			if !strings.Contains(said.String(), "[redacted]") {
				t.Errorf("nobody has repeated the key:\n%s", said.String())
			}
			if a.name == "codex" && !strings.Contains(said.String(), "url: "+api.URL+"/v1/responses") {
				t.Errorf("the address is hidden:\n%s", said.String())
			}
		})
	}
}
