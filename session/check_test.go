package session

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session/store"
)

// What makes no sense is said before anything is stored, by Check as by Open.
func TestAWrongConfigurationMakesNoSession(t *testing.T) {
	t.Parallel()
	right := scripted(t, steps(say("never")))
	for name, change := range map[string]func(*Config){
		"no agent":           func(c *Config) { c.Environment.Agent.Name = "" },
		"an agent's feature": func(c *Config) { c.Environment.Profile.SystemPrompt = "x" },
		"a wrong image's name": func(c *Config) {
			c.Environment.Sandbox = environment.Sandbox{Type: "docker", Spec: primitives.Spec{Image: "Not An Image"}}
		},
		"a queue that is none": func(c *Config) { c.MaxQueue = -1 },
	} {
		cfg := right
		cfg.Store = store.NewMemory()
		if change(&cfg); cfg.Check(t.Context()) == nil {
			t.Errorf("%s: Check finds nothing", name)
		}
		_, err := Open(t.Context(), cfg)
		if !errors.Is(err, environment.ErrConfig) && !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		for r, err := range cfg.Store.List(t.Context(), store.Filter{}) {
			t.Errorf("%s: the store has %s, %v", name, r.ID, err)
		}
	}
	right.Store = store.NewMemory()
	if err := right.Check(t.Context()); err != nil {
		t.Error(err)
	}
	for r, err := range right.Store.List(t.Context(), store.Filter{}) {
		t.Errorf("Check has stored %s, %v", r.ID, err)
	}
}
