package runner_test

import (
	"encoding/json"
	"testing"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/runner"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// A run of an agent with an output schema ends with JSON that matches it.
func TestAnAgentOfTheCoordinatorHasAnOutputSchema(t *testing.T) {
	s := serve(t, coordapi.Agent{Name: "null", OutputSchema: json.RawMessage("null"), ParametersSchema: json.RawMessage("null")}, coordapi.Agent{Name: "counts", OutputSchema: json.RawMessage(`{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}`)})
	take(t, s, func(_ *runner.Config, env *environment.Config) {
		env.Agent.Config = json.RawMessage(`{"turns":[{"steps":[{"text":"many"}]},{"steps":[{"text":"{\"n\":7}"}]},{"steps":[{"text":"free"}]}]}`)
	})
	var run coordapi.Run
	s.ask("POST", "/runs", `{"type":"start_session","agent_name":"counts","prompt":"count"}`, &run)
	s.await(run, coordapi.RunCompleted)
	if got := s.results(run); len(got) != 1 || string(got[0].ResultData) != `{"n":7}` {
		t.Errorf("the results are %+v", got)
	}
	s.ask("POST", "/runs", `{"type":"start_session","agent_name":"null","prompt":"count"}`, &run)
	s.await(run, coordapi.RunCompleted)
	if got := s.results(run); len(got) != 1 || len(got[0].ResultData) != 0 {
		t.Errorf("without a schema the results are %+v", got)
	}
}
