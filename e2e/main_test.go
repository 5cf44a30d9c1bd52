// Package e2e_test runs real agents through all layers, with a scripted model. It tests what all
// agents must have in common; the tests beside each driver test the rest.
package e2e_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/internal/test/testmodal"
)

// TestMain runs the tests of the package. After them nothing may be left in an engine or on a server, and no goroutine.
func TestMain(m *testing.M) { testleak.Exit(testmodal.Check(testdocker.Main(m))) }

// realAgent is an agent; lead points it to the scripted model at a URL.
type realAgent struct {
	name    string
	program string
	lead    func(cfg *environment.Config, url string)
}

// realAgents returns the agents that have a program of their own.
func realAgents(t *testing.T) []realAgent {
	t.Helper()
	env := func(cfg *environment.Config, vars ...string) {
		cfg.Agent.Env = map[string]string{}
		for i := 0; i < len(vars); i += 2 {
			cfg.Agent.Env[vars[i]] = vars[i+1]
		}
	}
	return []realAgent{
		{"claude", testagents.Claude(t), func(cfg *environment.Config, url string) {
			env(cfg, "ANTHROPIC_BASE_URL", url, "ANTHROPIC_API_KEY", secret, "CLAUDE_CODE_MAX_RETRIES", "1")
		}},
		{"codex", testagents.Codex(t), func(cfg *environment.Config, url string) {
			env(cfg, "OPENAI_BASE_URL", url+"/v1", "OPENAI_API_KEY", secret)
			cfg.Agent.Model = "gpt-5.5"
		}},
		{"gemini", testagents.Gemini(t), func(cfg *environment.Config, url string) {
			env(cfg, "GOOGLE_GEMINI_BASE_URL", url, "GEMINI_API_KEY", secret)
			cfg.Agent.Model = "gemini-2.5-pro"
		}},
		{"opencode", testagents.OpenCode(t), func(cfg *environment.Config, url string) {
			env(cfg, "SCRIPTED_KEY", secret)
			cfg.Agent.Model = "scripted/small"
			cfg.Agent.Config = json.RawMessage(fmt.Sprintf(`{"provider":{"scripted":{"npm":"@ai-sdk/openai-compatible",`+
				`"options":{"baseURL":"%s/v1","apiKey":"{env:SCRIPTED_KEY}"},"models":{"small":{"tool_call":true,"reasoning":true,`+
				`"limit":{"context":128000,"output":8192}}}}}}`, url))
		}},
	}
}

// config returns the configuration of the agent with the model at a URL.
func (a realAgent) config(url string) environment.Config {
	cfg := environment.Config{Agent: environment.Agent{Name: a.name, Command: []string{a.program}}}
	a.lead(&cfg, url)
	return cfg
}

// model starts a scripted model at an address.
func model(t *testing.T, addr string) *llmapi.Server {
	t.Helper()
	api, err := llmapi.Start(t.Context(), llmapi.Config{Addr: addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	return api
}

// programs returns the folder in which the agents are installed.
func programs(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("agents")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
