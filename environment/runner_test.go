package environment

import (
	"testing"

	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/primitives"
)

// TestTheRunnerIsNotCopiedIntoASandboxThatHasIt checks that a sandbox holds the runner once: as its
// guest, or on this machine.
func TestTheRunnerIsNotCopiedIntoASandboxThatHasIt(t *testing.T) {
	once := func(t *testing.T, e *Environment) {
		t.Helper()
		say(t, e, "hello")
		copies, err := e.Primitive().List(t.Context(), e.Primitive().Paths().App, primitives.ListOptions{Pattern: script.RunnerName + "*"})
		if err != nil || len(copies) > 0 {
			t.Errorf("there are %v, %v", copies, err)
		}
	}
	everywhere(t, func(t *testing.T, box Sandbox) {
		env := create(t, Config{Sandbox: box, Agent: Agent{Name: "script"}})
		once(t, env)
		if env.Primitive().Capabilities().Fork {
			once(t, forked(t, env, 1)[0])
		}
	})
	t.Run("docker, attached", func(t *testing.T) {
		box := container(t)
		env := create(t, Config{Sandbox: toKeep(box), Agent: Agent{Name: "script"}})
		once(t, env)
		once(t, attach(t, env.ID(), box))
		if err := env.Terminate(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
