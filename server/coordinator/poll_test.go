package coordinator_test

import (
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// The times of the protocol are part of it: a runner learns them when it registers.
func TestARunnerLearnsTheTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		want := regexp.MustCompile(`^\{"runner_id":"lnch_[0-9a-f]{12}","poll_endpoint":"/runner/runs","poll_timeout_seconds":30,"heartbeat_interval_seconds":60\}\n$`)
		if status, answer := s.ask("POST", "/runner/register", coding); status != 200 || !want.MatchString(answer) {
			t.Errorf("%d %s", status, answer)
		}
		runner := s.register(`{"hostname":"other","executor_profile":"coding"}`)
		s.run(`{"type":"start_session","prompt":"x","additional_demands":{"executor_profile":"other"}}`)
		poll := func(more string, want int, after time.Duration) {
			t.Helper()
			begun := time.Now()
			if status, answer := s.ask("GET", "/runner/runs?runner_id="+runner+more, ""); status != want || time.Since(begun) != after {
				t.Errorf("%d %s, after %v", status, answer, time.Since(begun))
			}
		}
		poll("", 204, 30*time.Second)
		r := s.startSession()
		poll("&full=true", 204, 30*time.Second) // it takes no run now
		poll("", 200, 0)
		s.report(runner, r.ID, "started", "")
		s.must("POST", "/sessions/"+r.SessionID+"/stop", "", nil)
		poll("&full=true", 200, 0) // but it stops one
	})
}

func TestAPollEndsWithWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		begun, polled := time.Now(), make(chan coordapi.Run)
		go func() { polled <- s.claim(runner) }()
		synctest.Wait()
		r := s.startSession()
		if got := <-polled; got.ID != r.ID || time.Since(begun) != 0 {
			t.Errorf("after %v it got %+v", time.Since(begun), got)
		}
	})
}
