package coordinator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// A client that has only the ID of a session learns why it has failed, until it has a run that does not.
func TestASessionSaysWhyItHasFailed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.begin(runner)
		s.report(runner, r.ID, "failed", `,"error":"exit status 3 `+strings.Repeat("x", 10_000)+`"`)
		if got := s.session(r.SessionID); !strings.HasPrefix(got.Error, "exit status 3") || len(got.Error) > 3_000 {
			t.Errorf("the session says %d bytes: %.100s", len(got.Error), got.Error)
		}
		s.fails("its result", "GET", "/sessions/"+r.SessionID+"/result", "", 400, "the session is failed: exit status 3")
		again := s.run(`{"type":"resume_session","session_id":"` + r.SessionID + `","prompt":"again"}`)
		s.claim(runner)
		if s.report(runner, again.ID, "started", ""); s.session(r.SessionID).Error != "" {
			t.Error("a session that runs has the error of an earlier run")
		}
		s.report(runner, again.ID, "completed", "")
		if got := s.session(r.SessionID); got.Error != "" || got.Status != coordapi.SessionFinished {
			t.Errorf("then the session is %+v", got)
		}
		waits := s.startSession()
		s.must("DELETE", "/runners/"+runner+"?self=true", "", nil)
		time.Sleep(610 * time.Second)
		if got := s.session(waits.SessionID); !strings.Contains(got.Error, "no runner has met its demands") {
			t.Errorf("a session without a runner is %+v", got)
		}
	})
}
