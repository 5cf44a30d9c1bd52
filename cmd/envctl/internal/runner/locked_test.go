package runner_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/runner"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// A run whose session another program of the machine has is not started, so that the coordinator hands it out again. One whose session
// is not there fails.
func TestARunWaitsForItsSession(t *testing.T) {
	s := serve(t)
	said, again := make(chan string, 100), make(chan coordapi.Run, 1)
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/runner/runs" || r.URL.Query().Get("full") == "true" {
			return false
		}
		select {
		case run := <-again: // ten seconds early
			if err := json.NewEncoder(w).Encode(coordapi.Polled{Run: &run}); err != nil {
				t.Error(err)
			}
			return true
		default:
			return false
		}
	}
	r := take(t, s, func(cfg *runner.Config, _ *environment.Config) {
		cfg.MaxRuns = 1 // the next run is taken when the one before has ended
		cfg.Say = func(format string, args ...any) { said <- fmt.Sprintf(format, args...) }
	})
	first := s.start("one")
	s.await(first, coordapi.RunCompleted)
	var now struct{ Session coordapi.Session }
	s.ask("GET", "/sessions/"+first.SessionID, "", &now)
	id := now.Session.ExecutorSessionID
	if err := r.host.Unload(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	unlock, err := r.host.Store().Lock(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	resume := `{"type":"resume_session","session_id":"` + first.SessionID + `","prompt":"two"}`
	var run coordapi.Run
	s.ask("POST", "/runs", resume, &run)
	for line := range said {
		if strings.HasPrefix(line, run.ID) {
			if !strings.Contains(line, "not run") || !strings.Contains(line, "the session is in use") {
				t.Fatalf("the runner says %s", line)
			}
			break
		}
	}
	if got := s.await(run, coordapi.RunClaimed); got.StartedAt != nil {
		t.Errorf("the run is %+v", got)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	again <- run
	s.await(s.start("wakes the poll"), coordapi.RunCompleted)
	s.await(run, coordapi.RunCompleted)

	if err := r.host.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s.ask("POST", "/runs", resume, &run)
	if got := s.await(run, coordapi.RunFailed); !strings.Contains(got.Error, "no such session") {
		t.Errorf("without its session it failed with %q", got.Error)
	}
}
