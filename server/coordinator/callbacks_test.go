package coordinator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// A parent whose run has failed or was stopped gets the callbacks that came meanwhile and come later, also after a restart.
func TestCallbacksReachAParentWhateverBecameOfItsRun(t *testing.T) {
	for _, end := range []string{"completed", "failed", "stopped"} {
		bubble(t, func(t *testing.T) {
			s := start(t)
			runner := s.register(coding)
			parent := s.startSession()
			s.begin(runner)
			child := func(result string) coordapi.Run {
				s.run(`{"type":"start_session","prompt":"x","execution_mode":"async_callback","parent_session_id":"` + parent.SessionID + `"}`)
				return s.finish(runner, result)
			}
			one, two := child("first <result>"), child("second")
			if p := s.poll(runner); p.Run != nil {
				t.Errorf("while the parent runs: %+v", p.Run)
			}
			s.restart()
			s.report(runner, parent.ID, end, "")
			got := s.finish(runner, "")
			if got.SessionID != parent.SessionID || got.Type != coordapi.ResumeSession || strings.Count(got.Prompt, "<agent-callback ") != 2 ||
				!strings.Contains(got.Prompt, one.SessionID) || !strings.Contains(got.Prompt, two.SessionID) || !strings.Contains(got.Prompt, "first &lt;result&gt;") {
				t.Errorf("%s: resumed with %+v", end, got)
			}
			three := child("third")
			if got := s.finish(runner, ""); !strings.Contains(got.Prompt, three.SessionID) || strings.Contains(got.Prompt, one.SessionID) {
				t.Errorf("%s: later resumed with %+v", end, got)
			}
		})
	}
}

// A callback that no runner has taken in time is not lost.
func TestACallbackThatNobodyTookComesWithTheNext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		parent := s.startSession()
		got := s.begin(runner)
		s.must("POST", "/sessions/"+parent.SessionID+"/bind", `{"executor_session_id":"e","hostname":"h","executor_profile":"coding"}`, nil)
		s.report(runner, got.ID, "completed", "")
		s.must("DELETE", "/runners/"+runner+"?self=true", "", nil)
		other := s.register(`{"hostname":"other","executor_profile":"coding"}`)
		s.run(`{"type":"start_session","prompt":"x","execution_mode":"async_callback","parent_session_id":"` + parent.SessionID + `"}`)
		child := s.finish(other, "child")
		time.Sleep(400 * time.Second)
		if got := s.claim(s.register(coding)); !strings.Contains(got.Prompt, child.SessionID) || got.SessionID != parent.SessionID {
			t.Errorf("the parent got %+v", got)
		}
	})
}

// A callback whose run fails before the agent has it, as without an engine, comes with a later run; not with any number of them, since
// it may be why they fail.
func TestACallbackThatTheAgentDidNotGetComesAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		parent := s.startSession()
		s.finish(runner, "")
		first := s.call(parent)
		s.finish(runner, "first")
		for range 3 {
			got := s.claim(runner)
			if got.SessionID != parent.SessionID || !strings.Contains(got.Prompt, first.SessionID) {
				t.Errorf("the parent got %+v", got)
			}
			s.report(runner, got.ID, "started", "")
			s.restart()
			s.report(runner, got.ID, "failed", `,"error":"no engine"`)
			if p := s.poll(runner); p.Run != nil {
				t.Errorf("it came at once: %+v", p.Run)
			}
			s.call(parent)
			s.finish(runner, "later")
		}
		got := s.claim(runner)
		if strings.Contains(got.Prompt, first.SessionID) || strings.Count(got.Prompt, "<agent-callback ") != 3 {
			t.Errorf("after three attempts the parent got %+v", got)
		}
		s.report(runner, got.ID, "started", "")
		s.must("POST", "/sessions/"+parent.SessionID+"/events", `{"event_type":"message"}`, nil)
		s.report(runner, got.ID, "failed", `,"error":"the model is overloaded"`)
		last := s.call(parent)
		s.finish(runner, "")
		if got := s.claim(runner); strings.Count(got.Prompt, "<agent-callback ") != 1 || !strings.Contains(got.Prompt, last.SessionID) {
			t.Errorf("after a run that the agent had the parent got %+v", got)
		} else {
			s.report(runner, got.ID, "started", "")
			s.report(runner, got.ID, "completed", "")
		}
		fresh := s.call(parent)
		s.finish(runner, "")
		got = s.claim(runner)
		if strings.Count(got.Prompt, "<agent-callback ") != 1 {
			t.Errorf("after a run without an event the parent got %+v", got)
		}
		s.call(parent)
		s.report(runner, got.ID, "started", "")
		s.finish(runner, "")
		s.report(runner, got.ID, "failed", "")
		if got := s.claim(runner); strings.Count(got.Prompt, "<agent-callback ") != 2 || !strings.Contains(got.Prompt, fresh.SessionID) {
			t.Errorf("with one that came meanwhile the parent got %+v", got)
		}
	})
}

// The callbacks of many children, which their parent gets at once, fit into a run.
func TestTheCallbacksOfManyChildrenAreCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		parent := s.startSession()
		s.begin(runner)
		var children []coordapi.Run
		for range 15 {
			s.run(`{"type":"start_session","prompt":"x","execution_mode":"async_callback","parent_session_id":"` + parent.SessionID + `"}`)
			children = append(children, s.finish(runner, strings.Repeat("x", 60_000)))
		}
		s.report(runner, parent.ID, "completed", "")
		status, answer := s.ask("GET", "/runner/runs?runner_id="+runner, "")
		if status != 200 || len(answer) > 8<<20 || strings.Count(answer, "[cut]") != 30 || strings.Count(answer, "/result") != 12 {
			t.Errorf("the poll got %d with %d bytes, %d cut and %d remarks", status, len(answer), strings.Count(answer, "[cut]"), strings.Count(answer, "/result"))
		}
		for _, c := range children {
			if !strings.Contains(answer, c.SessionID) {
				t.Errorf("the callback of %s is missing", c.SessionID)
			}
		}
	})
}

// call asks for a run of a new child that calls its parent back.
func (s *subject) call(parent coordapi.Run) coordapi.Run {
	s.t.Helper()
	return s.run(`{"type":"start_session","prompt":"x","execution_mode":"async_callback","parent_session_id":"` + parent.SessionID + `"}`)
}

// A stop is one: callbacks do not resume the session, whether they have come before or come later, until a client does.
func TestAStoppedParentIsNotResumed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		parent := s.startSession()
		s.begin(runner)
		one := s.call(parent)
		s.finish(runner, "before")
		two := s.call(parent)
		s.must("POST", "/runs/"+parent.ID+"/stop", "", nil)
		if p := s.poll(runner); len(p.StopSessions) != 1 {
			t.Fatalf("the runner got %+v", p)
		}
		s.report(runner, parent.ID, "stopped", "")
		if got := s.finish(runner, "after"); got.ID != two.ID {
			t.Errorf("the stopped session was resumed: %+v", got)
		}
		s.must("DELETE", "/runners/"+runner+"?self=true", "", nil)
		s.restart()
		s.register(coding) // which delivers to those that waited for it
		if p := s.poll(runner); p.Run != nil {
			t.Errorf("the stopped session was resumed: %+v", p.Run)
		}
		s.run(`{"type":"resume_session","session_id":"` + parent.SessionID + `","prompt":"go on"}`)
		s.finish(runner, "")
		got := s.claim(runner)
		if !strings.Contains(got.Prompt, one.SessionID) || !strings.Contains(got.Prompt, two.SessionID) {
			t.Errorf("the callbacks came as %q", got.Prompt)
		}
		s.must("POST", "/sessions/"+parent.SessionID+"/stop", "", nil) // before the agent has them
		s.call(parent)
		s.finish(runner, "")
		if p := s.poll(runner); p.Run != nil {
			t.Errorf("the session that was stopped again was resumed: %+v", p.Run)
		}
	})
}

// A parent has a number of callbacks that wait, also of children that have not ended and in a run that has not started.
func TestOnlySoManyCallbacksWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		parent := s.startSession()
		s.begin(runner)
		s.close()
		s.sql("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999) UPDATE item SET data = json_set(data, '$.callbacks', json((" +
			"SELECT json_group_array(json_object('session', 'ses_' || i, 'run', 'run_' || i, 'status', 'completed')) FROM n))) WHERE kind = 'session'")
		s.open()
		s.call(parent)
		more := `{"type":"start_session","prompt":"x","parent_session_id":"` + parent.SessionID + `","execution_mode":`
		s.fails("one more", "POST", "/runs", more+`"async_callback"}`, 429, "1000 callbacks wait for the session "+parent.SessionID)
		s.must("POST", "/runs", more+`"async_poll"}`, nil)
		s.report(runner, parent.ID, "completed", "")
		s.fails("before the run that has them starts", "POST", "/runs", more+`"async_callback"}`, 429, "1000 callbacks")
		s.finish(runner, "")   // the child, whose callback waits now
		s.finish(runner, "")   // that without one
		got := s.begin(runner) // the callbacks
		s.fails("before the agent has them", "POST", "/runs", more+`"async_callback"}`, 429, "1000 callbacks")
		s.report(runner, got.ID, "completed", "")
		s.call(parent)
	})
}

// A run that says nothing has no result: that of the run before is no answer to its parent.
func TestACallbackHasTheResultOfItsRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		parent := s.startSession()
		s.finish(runner, "")
		child := s.run(`{"type":"start_session","prompt":"x","parent_session_id":"` + parent.SessionID + `"}`)
		s.finish(runner, "the first result")
		next := s.run(`{"type":"resume_session","prompt":"x","session_id":"` + child.SessionID + `","execution_mode":"async_callback"}`)
		s.begin(runner)
		s.report(runner, next.ID, "completed", "")
		var result struct{ Result string }
		s.must("GET", "/sessions/"+child.SessionID+"/result", "", &result)
		if got := s.claim(runner).Prompt; strings.Contains(got, "first") || result.Result != "" {
			t.Errorf("the parent got %q, a client %q", got, result.Result)
		}
	})
}
