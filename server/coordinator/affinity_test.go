package coordinator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// Runners of one host and one profile.
const (
	inA     = `{"hostname":"h","project_dir":"/a","executor_profile":"coding","tags":["a"],"require_matching_tags":true}`
	inB     = `{"hostname":"h","project_dir":"/b","executor_profile":"coding","tags":["b"],"require_matching_tags":true}`
	tagless = `{"hostname":"h","project_dir":"/b","executor_profile":"coding"}`
	nowhere = `{"hostname":"h","executor_profile":"coding"}`
)

// settle takes the next run of a runner to its start, and binds its session there.
func (s *subject) settle(runner string) coordapi.Run {
	s.t.Helper()
	r := s.begin(runner)
	s.must("POST", "/sessions/"+r.SessionID+"/bind", `{"executor_session_id":"uuid","hostname":"h","executor_profile":"coding","project_dir":"/note"}`, nil)
	return r
}

// only requires that, of several runners, one gets the next run; none if it is empty.
func (s *subject) only(what, one string, all ...string) {
	s.t.Helper()
	for _, id := range all {
		if p := s.poll(id); (p.Run != nil) != (id == one) {
			s.t.Errorf("%s: the runner %s got %+v, want %q", what, id, p.Run, one)
		}
	}
}

// resume asks for another run of a session, with more keys of the request.
func (s *subject) resume(r coordapi.Run, more string) coordapi.Run {
	s.t.Helper()
	return s.run(`{"type":"resume_session","session_id":"` + r.SessionID + `","prompt":"more"` + more + `}`)
}

func TestAResumeIsForTheRunnerThatHasTheSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		a, b, none := s.register(inA), s.register(inB), s.register(nowhere)
		s.run(`{"type":"start_session","prompt":"x","additional_demands":{"tags":["b"]}}`)
		r := s.settle(b)
		s.report(b, r.ID, "completed", "")

		next := s.resume(r, "")
		if d := next.Demands; d.Hostname != "h" || d.ProjectDir != "/b" || d.ExecutorProfile != "coding" || strings.Join(d.Tags, " ") != "b" {
			t.Errorf("the demands are %+v", d)
		}
		s.only("a resume", b, a, none, b)
		s.report(b, next.ID, "started", "")
		s.report(b, next.ID, "completed", "")
		s.fails("a resume elsewhere", "POST", "/runs",
			`{"type":"resume_session","session_id":"`+r.SessionID+`","prompt":"x","additional_demands":{"project_dir":"/a"}}`, 400, "conflicting_demands")

		// The runner is started again, without its tag and then with it.
		s.must("DELETE", "/runners/"+b+"?self=true", "", nil)
		next = s.resume(r, "")
		s.register(tagless)
		s.only("a resume without the tag of the start", "", a, none, b)
		s.must("DELETE", "/runners/"+b+"?self=true", "", nil)
		s.register(inB)
		s.only("a resume after a start of its runner", b, a, none, b)
		s.report(b, next.ID, "started", "")
		s.report(b, next.ID, "completed", "")

		s.restart()
		s.resume(r, "")
		s.only("a resume after a restart of the coordinator", b, a, none, b)
	})
}

// A runner without a folder is another one than those with a folder, though no demand can say so.
func TestAResumeIsForARunnerWithoutAFolder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		none := s.register(nowhere)
		r := s.startSession()
		s.settle(none)
		other := s.register(tagless)
		queued := s.resume(r, "") // before the session has ended its first run
		s.report(none, r.ID, "completed", "")
		s.only("a queued resume", none, other, none)
		s.report(none, queued.ID, "started", "")
		s.report(none, queued.ID, "completed", "")
		s.must("DELETE", "/runners/"+none+"?self=true", "", nil)
		lost := s.resume(r, "")
		for range 6 {
			s.only("a resume without its runner", "", other)
			time.Sleep(60 * time.Second)
		}
		if got := s.state(lost.ID); got.Status != coordapi.RunFailed || !strings.Contains(got.Error, none) {
			t.Errorf("it is %s: %s", got.Status, got.Error)
		}
	})
}

// A resume that is asked for before its session is at a runner has few demands, and goes to that runner.
func TestAQueuedResumeFollowsItsSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		other, b := s.register(nowhere), s.register(inB)
		r := s.run(`{"type":"start_session","prompt":"x","additional_demands":{"tags":["b"]}}`)
		queued := s.resume(r, "")
		s.settle(b)
		s.report(b, r.ID, "completed", "")
		s.only("a queued resume", b, other, b)
		s.report(b, queued.ID, "started", "")
	})
}

// A session that no runner has, because its first run failed before it was bound, is for all that meet its demands.
func TestASessionThatWasNotMadeIsForAllRunners(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		broken := s.register(nowhere)
		r := s.startSession()
		s.begin(broken)
		s.report(broken, r.ID, "failed", `,"error":"no space"`)
		other := s.register(tagless)
		s.resume(r, "")
		s.only("a resume", other, other)
	})
}

func TestACallbackIsForTheRunnerThatHasTheParent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		a, b, none := s.register(inA), s.register(inB), s.register(nowhere)
		s.run(`{"type":"start_session","prompt":"x","additional_demands":{"tags":["b"]}}`)
		parent := s.settle(b)
		s.run(`{"type":"start_session","prompt":"child","parent_session_id":"` + parent.SessionID + `","execution_mode":"async_callback","additional_demands":{"tags":["a"]}}`)
		s.report(b, parent.ID, "completed", "")
		s.finish(a, "child done")
		s.only("a callback", b, a, none, b)
	})
}
