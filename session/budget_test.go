package session

import (
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestTheUserOfASessionRaisesABudget checks that the question is an event, that Respond answers
// it, and that the query of a real agent then continues.
func TestTheUserOfASessionRaisesABudget(t *testing.T) {
	api, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TEST_HOST_KEY", "test-key")
	cfg := scripted(t)
	cfg.Environment.Agent = environment.Agent{Name: "codex", Model: "gpt-5.5", PermissionMode: "full-access", Command: []string{testagents.Codex(t)}}
	cfg.Environment.Credentials = map[string]environment.Credential{"openai": {Env: "TEST_HOST_KEY", URL: api.URL + "/v1"}}
	cfg.Environment.Budget = environment.Budget{Query: environment.Limits{Requests: 1}, Ask: true}
	cfg.Environment.OnPermission, cfg.Environment.PermissionTimeout = environment.AnswerLater, -1
	s := start(t, cfg)
	turn := prompt(t, s, "please write-file `notes.txt`") // two calls
	req := payload[runnerscripts.PermissionRequest](t, await(t, s, runnerscripts.TypePermissionRequest))
	if err := s.Respond(t.Context(), req.ID, req.Allow()); err != nil {
		t.Fatal(err)
	}
	complete(t, turn)
	if all := resolutions(t, s); len(all) != 1 || all[0].Kind != runnerscripts.AllowOnce || all[0].Reason != reasonAnswered {
		t.Errorf("the requests ended with %+v", all)
	}
}
