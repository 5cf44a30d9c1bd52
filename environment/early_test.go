package environment

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// A configuration that no sandbox could run is refused before one is made.
func TestAnUnknownAgentIsRefusedBeforeASandboxIsMade(t *testing.T) {
	everywhere(t, func(t *testing.T, box Sandbox) {
		env, err := Create(t.Context(), Config{Sandbox: box, Agent: Agent{Name: "scrpt"}})
		if err == nil {
			t.Fatal(errors.Join(errors.New("no error"), env.Close()))
		}
		failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
		text := err.Error()
		if !errors.Is(err, ErrConfig) || !ok || failure.Code != runnerscripts.FailUnknownAgent ||
			!strings.HasPrefix(text, `invalid configuration: agent.name: there is no agent "scrpt"; did you mean script? there are: acp, `) {
			t.Errorf("got %v", err)
		}
		if box.Type == "local" {
			if made, err := os.ReadDir(box.Local.Root); err == nil && len(made) > 0 {
				t.Errorf("sandboxes were made: %v", made)
			}
		}
	})
	_, err := New(t.Context(), newBare(t), Config{Agent: Agent{Name: "hal9000"}})
	if !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), "did you mean") {
		t.Errorf("in a sandbox of the caller: %v", err)
	}
}

func TestCheckRefusesWhatCreateWouldRefuse(t *testing.T) {
	good := Config{Sandbox: sandbox(t), Agent: Agent{Name: "script"}}
	if err := good.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*Config){
		"no type":           func(c *Config) { c.Sandbox.Type = "" },
		"an unknown type":   func(c *Config) { c.Sandbox.Type = "dokcer" },
		"an unknown agent":  func(c *Config) { c.Agent.Name = "hal9000" },
		"no such folder":    func(c *Config) { c.Workspace = []Source{{Folder: &Folder{Path: "/no/such"}}} },
		"no such runner":    func(c *Config) { c.Runner = "/no/such" },
		"a malformed name":  func(c *Config) { c.Name = "a b" },
		"a pool in Create":  func(c *Config) { c.Pool.Max = 1 },
		"an impossible var": func(c *Config) { c.Agent.Env = map[string]string{"A=B": ""} },
	} {
		cfg := good
		spoil(&cfg)
		if err := cfg.Check(t.Context()); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v, want ErrConfig", name, err)
		}
	}
}
