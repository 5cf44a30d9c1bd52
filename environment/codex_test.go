package environment

import (
	"context"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
)

// TestCodexWorksInEverySandbox runs the real agent with a scripted model, on a machine that has
// it and in an image that is built for it.
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
	t.Run("docker", func(t *testing.T) {
		t.Parallel()
		cfg := inContainer(t, testdocker.Node(t))
		cfg.Sandbox.Network = "" // so that the agent reaches the model
		cfg.Sandbox.User = "tester"
		agentWorks(t, with(cfg), testdocker.Gateway(t)+":0", variables)
	})
}

// TestAStartThatFailedDoesNotFailTheNextQuery checks that the agent does not start without a
// key, and that it works for a client that then attaches with a key.
func TestAStartThatFailedDoesNotFailTheNextQuery(t *testing.T) {
	t.Parallel()
	api, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	box := sandbox(t)
	env, err := Create(t.Context(), Config{Sandbox: toKeep(box), Agent: Agent{Name: "codex", Model: "gpt-5.5", Command: []string{testagents.Codex(t)}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(context.WithoutCancel(t.Context()), box, env.ID()); err != nil {
			t.Error(err)
		}
	})
	if _, err := collect(t.Context(), env, Query{Prompt: "please plain-text"}); err == nil || !strings.Contains(err.Error(), "key") {
		t.Errorf("without a key: %v", err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		again, err := Attach(t.Context(), Config{Sandbox: box, Agent: Agent{Env: map[string]string{"OPENAI_BASE_URL": api.URL + "/v1", "OPENAI_API_KEY": "test-key"}}}, env.ID())
		if err != nil {
			t.Fatal(err)
		}
		if text := say(t, again, "please plain-text"); !strings.Contains(text, "Hello from the scripted model") {
			t.Errorf("with a key it says %q", text)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
}
