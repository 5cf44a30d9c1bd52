package session

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestParametersThatDoNotMatchMakeNoSandbox(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Environment: environment.Config{Sandbox: environment.Sandbox{Type: "local"}, Agent: environment.Agent{
		Name: "command", Command: []string{"true"}, Config: []byte(`{"type": "procedural", "parameters_schema": {"required": ["month"]}}`),
	}}})
	for _, text := range []string{"hello", "{}", `{"month": 5, "-x": 1}`} {
		turn := prompt(t, s, text)
		_, err := turn.Wait(t.Context())
		q, ok := errors.AsType[*QueryError](err)
		if !ok || q.Failure.Code != runnerscripts.FailParameters || q.Failure.Detail == nil || len(q.Failure.Detail.Violations) != 1 {
			t.Errorf("%s: %v", text, err)
		}
	}
	complete(t, prompt(t, s, `{"month": 5}`))
	made := 0
	for _, ev := range logOf(t, s) {
		switch ev.Type {
		case runnerscripts.TypeEnvironmentCreating:
			made++
		case runnerscripts.TypeQueryFailed:
			if made > 0 {
				t.Error("a sandbox was made for parameters that do not match")
			}
		}
	}
	if made != 1 {
		t.Errorf("%d sandboxes were made for the parameters that match", made)
	}
}
