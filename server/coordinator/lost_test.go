package coordinator_test

import (
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// The hook that is late was claimed by a runner that is lost: it stays stopped.
func TestALateHookOfALostRunnerStaysStopped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, gated("", 121)...)
		runner := s.register(coding)
		other := s.register(`{"hostname":"other","executor_profile":"coding"}`)
		r := s.run(`{"type":"start_session","agent_name":"gated","prompt":"x"}`)
		time.Sleep(60 * time.Second)
		hook := s.claim(runner)
		for range 4 {
			s.must("POST", "/runner/heartbeat", `{"runner_id":"`+other+`"}`, nil)
			time.Sleep(17 * time.Second)
		}
		if got := s.state(hook.ID); got.Status != coordapi.RunStopped {
			t.Errorf("the hook is %+v", got)
		}
		if got := s.claim(other); got.ID != r.ID {
			t.Errorf("then comes %+v", got)
		}
	})
}

// A session goes on when its parent is deleted. Only a callback needs that.
func TestAChildGoesOnWithoutItsParent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		parent := s.startSession()
		s.finish(runner, "")
		child := s.run(`{"type":"start_session","prompt":"x","parent_session_id":"` + parent.SessionID + `"}`)
		s.finish(runner, "")
		s.must("DELETE", "/sessions/"+parent.SessionID, "", nil)
		resume := `{"type":"resume_session","prompt":"x","session_id":"` + child.SessionID + `"`
		s.run(resume + `}`)
		s.fails("with a callback", "POST", "/runs", resume+`,"execution_mode":"async_callback"}`, 404, parent.SessionID)
	})
}

// A runner that was removed is no runner that the coordinator has forgotten, which registers again.
func TestARemovedRunnerDoesNotComeBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		const registration = `{"hostname":"h","executor_profile":"coding","instance":"1"}`
		runner := s.register(registration)
		s.must("DELETE", "/runners/"+runner, "", nil)
		s.fails("a heartbeat", "POST", "/runner/heartbeat", `{"runner_id":"`+runner+`","instance":"1"}`, 409, "runner_removed")
		s.fails("a registration", "POST", "/runner/register", registration, 409, "runner_removed")
		s.register(`{"hostname":"h","executor_profile":"coding","instance":"2"}`)
	})
}

// A runner that was removed lets its runs end, however long that takes.
func TestARemovedRunnerKeepsItsRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.begin(runner)
		s.must("DELETE", "/runners/"+runner, "", nil)
		for range 20 {
			time.Sleep(time.Minute)
			s.fails("a heartbeat", "POST", "/runner/heartbeat", `{"runner_id":"`+runner+`","runs":["`+r.ID+`"]}`, 409, "runner_removed")
		}
		s.report(runner, r.ID, "completed", "")
		if got := s.state(r.ID); got.Status != coordapi.RunCompleted {
			t.Errorf("the run is %+v", got)
		}
	})
}

// A run that a runner has claimed and not started goes to another one as soon as the first one leaves.
func TestAClaimedRunOfARunnerThatLeavesIsFree(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner, other := s.register(coding), s.register(`{"hostname":"other","executor_profile":"coding"}`)
		r := s.startSession()
		s.claim(runner)
		begun := time.Now()
		s.must("DELETE", "/runners/"+runner+"?self=true", "", nil)
		if got := s.claim(other); got.ID != r.ID || time.Since(begun) != 0 {
			t.Errorf("after %v another one got %+v", time.Since(begun), got)
		}
	})
}

// A stop that a runner never confirms ends the run all the same, though not at once.
func TestAStopThatIsNotConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.begin(runner)
		s.must("POST", "/sessions/"+r.SessionID+"/stop", "", nil)
		for _, want := range []coordapi.RunStatus{coordapi.RunStopping, coordapi.RunStopped} {
			time.Sleep(65 * time.Second)
			s.must("POST", "/runner/heartbeat", `{"runner_id":"`+runner+`"}`, nil)
			if got := s.state(r.ID); got.Status != want {
				t.Errorf("it is %+v, want %s", got, want)
			}
		}
	})
}
