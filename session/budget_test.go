package session

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// TestTheUserOfASessionRaisesABudget checks that the question is an event, that Respond answers
// it, and that the query then continues.
func TestTheUserOfASessionRaisesABudget(t *testing.T) {
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
	executor, err := filepath.Abs("../environment/testdata/executor.mjs") // calls the model twice
	key := filepath.Join(t.TempDir(), "key")
	if err := errors.Join(err, os.WriteFile(key, []byte("test-key"), 0o600)); err != nil {
		t.Fatal(err)
	}
	cfg := scripted(t)
	cfg.Environment.Agent = environment.Agent{Name: "command", Command: []string{"node", executor}}
	cfg.Environment.Credentials = map[string]environment.Credential{"anthropic": {File: key, URL: api.URL}}
	cfg.Environment.Budget = environment.Budget{Query: environment.Limits{Requests: 1}, Ask: true}
	cfg.Environment.OnPermission, cfg.Environment.PermissionTimeout = environment.AnswerLater, -1
	s := start(t, cfg)
	turn := prompt(t, s, "please write-file `notes.txt`")
	req := payload[runnerscripts.PermissionRequest](t, await(t, s, runnerscripts.TypePermissionRequest))
	if err := s.Respond(t.Context(), req.ID, req.Allow()); err != nil {
		t.Fatal(err)
	}
	complete(t, turn)
	if all := resolutions(t, s); len(all) != 1 || all[0].Kind != runnerscripts.AllowOnce || all[0].Reason != runnerscripts.ReasonAnswered {
		t.Errorf("the requests ended with %+v", all)
	}
}
