package session

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
)

func TestOpenRefusesAConfigurationThatNoSandboxCouldRun(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*environment.Config){
		"an unknown type":  func(c *environment.Config) { c.Sandbox.Type = "dokcer" },
		"no type":          func(c *environment.Config) { c.Sandbox = environment.Sandbox{} },
		"an unknown agent": func(c *environment.Config) { c.Agent.Name = "hal9000" },
		"no such folder": func(c *environment.Config) {
			c.Workspace = []environment.Source{{Folder: &environment.Folder{Path: "/no/such"}}}
		},
	} {
		cfg := scripted(t)
		spoil(&cfg.Environment)
		s, err := Open(t.Context(), cfg)
		if !errors.Is(err, environment.ErrConfig) {
			t.Errorf("%s: %v, want ErrConfig", name, err)
		}
		if s != nil {
			closeLater(t, s)
		}
	}
}
