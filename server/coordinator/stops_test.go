package coordinator_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// A run that waits behind a running one ends with the stop, and the stop still reaches the runner of the other.
func TestAStopReachesARunWithAQueue(t *testing.T) {
	for _, path := range []string{"/runs/RUN/stop", "/runs/QUEUED/stop", "/sessions/SESSION/stop"} {
		bubble(t, func(t *testing.T) {
			s := start(t)
			runner := s.register(coding)
			r := s.startSession()
			s.begin(runner)
			queued := s.run(`{"type":"resume_session","session_id":"` + r.SessionID + `","prompt":"more"}`)
			path := strings.NewReplacer("RUN", r.ID, "QUEUED", queued.ID, "SESSION", r.SessionID).Replace(path)
			want := coordapi.RunStopping
			if strings.Contains(path, queued.ID) {
				want = coordapi.RunStopped
			}
			var answer struct{ Status coordapi.RunStatus }
			if s.must("POST", path, "", &answer); answer.Status != want {
				t.Errorf("%s answers %s, want %s", path, answer.Status, want)
			}
			if got := s.session(r.SessionID).Status; got != coordapi.SessionStopping || s.state(queued.ID).Status != coordapi.RunStopped {
				t.Errorf("after %s the session is %s, and the queued run %s", path, got, s.state(queued.ID).Status)
			}
			begun := time.Now()
			for _, after := range []time.Duration{0, 10 * time.Second} { // it comes again
				if p := s.poll(runner); len(p.StopSessions) != 1 || p.StopSessions[0] != r.SessionID || time.Since(begun) != after {
					t.Errorf("%s: after %v the runner got %+v, want that after %v", path, time.Since(begun), p, after)
				}
			}
			s.report(runner, r.ID, "stopped", "")
			if got := s.session(r.SessionID).Status; got != coordapi.SessionStopped {
				t.Errorf("at the end the session is %s", got)
			}
			if p := s.poll(runner); len(p.StopSessions) != 0 {
				t.Errorf("afterwards came %+v", p)
			}
		})
	}
}

// A run that is queued behind one that runs, and fails before it starts, says nothing about the session.
func TestAQueuedRunThatIsStoppedLeavesTheStopOfItsSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.begin(runner)
		s.must("POST", "/runs/"+r.ID+"/stop", "", nil)
		queued := s.run(`{"type":"resume_session","session_id":"` + r.SessionID + `","prompt":"more"}`)
		s.must("POST", "/runs/"+queued.ID+"/stop", "", nil)
		if got := s.session(r.SessionID).Status; got != coordapi.SessionStopping {
			t.Errorf("the session is %s", got)
		}
		if p := s.poll(runner); len(p.StopSessions) != 1 {
			t.Errorf("the runner got %+v", p)
		}
	})
}

// Only so many ended runs of a session are kept: a stop may remove the run that the client has named.
func TestAStopOfMoreRunsThanAreKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		r := s.startSession()
		resume := `{"type":"resume_session","session_id":"` + r.SessionID + `","prompt":"more"}`
		for range 101 {
			s.run(resume)
		}
		var answer struct{ Status coordapi.RunStatus }
		if s.must("POST", "/runs/"+r.ID+"/stop", "", &answer); answer.Status != coordapi.RunStopped {
			t.Errorf("the answer is %+v", answer)
		}
		var list struct{ Runs []coordapi.Run }
		s.must("GET", "/runs?session_id="+r.SessionID, "", &list)
		if slices.ContainsFunc(list.Runs, func(r coordapi.Run) bool { return r.Status != coordapi.RunStopped }) || len(list.Runs) != 100 {
			t.Errorf("afterwards there are %d runs, the latest %+v", len(list.Runs), list.Runs[0])
		}
	})
}

// A stop of an idle session that a client resumes before the runner has confirmed it does not stop the new run.
func TestAStopOfAnIdleSessionLeavesALaterRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.begin(runner)
		s.report(runner, r.ID, "completed", `,"session_status":"idle"`)
		s.must("POST", "/sessions/"+r.SessionID+"/stop", "", nil)
		if p := s.poll(runner); len(p.StopSessions) != 1 {
			t.Fatalf("the runner got %+v", p)
		}
		s.run(`{"type":"resume_session","session_id":"` + r.SessionID + `","prompt":"more"}`)
		s.begin(runner)
		if p := s.poll(runner); len(p.StopSessions) != 0 {
			t.Errorf("after its start came %+v", p)
		}
	})
}

// The end of a run that never started does not stand for the confirmation of the runner, which still has the session.
func TestAStopOfAnIdleSessionStaysWithoutALaterRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.begin(runner)
		s.report(runner, r.ID, "completed", `,"session_status":"idle"`)
		s.must("POST", "/sessions/"+r.SessionID+"/stop", "", nil)
		next := s.run(`{"type":"resume_session","session_id":"` + r.SessionID + `","prompt":"more"}`)
		s.must("POST", "/runs/"+next.ID+"/stop", "", nil)
		if p, got := s.poll(runner), s.session(r.SessionID).Status; len(p.StopSessions) != 1 || got != coordapi.SessionStopping {
			t.Errorf("the runner got %+v, and the session is %s", p, got)
		}
		s.must("POST", "/runner/sessions/"+r.SessionID+"/status", `{"runner_id":"`+runner+`","status":"stopped"}`, nil)
		if got := s.session(r.SessionID).Status; got != coordapi.SessionStopped {
			t.Errorf("at the end the session is %s", got)
		}
	})
}
