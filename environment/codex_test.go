package environment

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/testagents"
	"github.com/agentenv-dev/agentenv/internal/testdocker"
)

// TestCodexWorksInEverySandbox runs the real agent, with a scripted model, where
// this machine has it and where an image has to be built for it.
func TestCodexWorksInEverySandbox(t *testing.T) {
	with := func(cfg Config) Config {
		cfg.Agent.Name, cfg.Agent.Model, cfg.Agent.PermissionMode = "codex", "gpt-5.5", "full-access"
		return cfg
	}
	variables := func(url string) map[string]string {
		return map[string]string{"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "test-key"}
	}
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		cfg := Config{Sandbox: sandbox(t), Agent: Agent{Command: []string{testagents.Codex(t)}}}
		agentWorks(t, with(cfg), "127.0.0.1:0", variables)
	})
	for name, user := range map[string]string{"docker as root": "", "docker as a user": "tester"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := inContainer(t, testdocker.Node(t))
			cfg.Sandbox.Docker.Network = "" // where the model is
			cfg.Sandbox.Docker.User = user
			agentWorks(t, with(cfg), testdocker.Gateway(t)+":0", variables)
		})
	}
}
