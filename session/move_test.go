package session

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestASessionGoesOnWhereItsSandboxHasMoved(t *testing.T) {
	t.Parallel()
	cfg := lasting(t, steps(run("sh", "-c", "echo one >file")), steps(say("second after {{history}}")))
	s := start(t, cfg)
	complete(t, prompt(t, s, "first"))
	was := s.live().ID()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenMoved(t.Context(), cfg, nil); err == nil {
		t.Error("a session without an ID was opened")
	}
	env, err := environment.Attach(t.Context(), environment.Config{Sandbox: cfg.Environment.Sandbox}, was)
	if err != nil {
		t.Fatal(err)
	}
	to, err := env.Move(t.Context(), environment.Config{Sandbox: cfg.Environment.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	cfg.ID = s.ID()
	s, err = OpenMoved(t.Context(), cfg, to)
	if err != nil {
		t.Fatal(errors.Join(err, to.Close()))
	}
	defer s.Close()
	turn := prompt(t, s, "second")
	complete(t, turn)
	if c, err := Reduce(turn.Events(t.Context())); err != nil || said(c) != "second after first" {
		t.Errorf("it said %q, %v", said(c), err)
	}
	if got, _ := written(t, s, "file"); got != "one\n" {
		t.Errorf("the file has %q", got)
	}
	state, err := ReadState(t.Context(), cfg.Store, s.ID())
	if err != nil || state.Environment.ID != to.ID() || to.ID() == was || sandboxes(t, cfg) != 1 {
		t.Errorf("the sandbox is %q, moved from %q to %q, one of %d, %v", state.Environment.ID, was, to.ID(), sandboxes(t, cfg), err)
	}
	var ended []string
	for _, ev := range logOf(t, s) {
		if ev.Type == runnerscripts.TypeEnvironmentTerminated {
			ended = append(ended, payload[runnerscripts.EnvironmentTerminated](t, ev).Reason)
		}
	}
	if len(ended) != 1 || ended[0] != reasonMoved {
		t.Errorf("sandboxes ended for %q", ended)
	}
}
