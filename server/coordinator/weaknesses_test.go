package coordinator_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// The tests of this file are the weaknesses of claude-agent-orchestrator: each fails with what that does.

// gated is an agent whose runs begin with a hook, and report to another one.
func gated(onError string, timeout int) []coordapi.Agent {
	return []coordapi.Agent{
		{Name: "gated", Hooks: coordapi.Hooks{
			OnRunStart:  &coordapi.Hook{AgentName: "gate", OnError: onError, TimeoutSeconds: timeout},
			OnRunFinish: &coordapi.Hook{AgentName: "notes"},
		}},
		{Name: "gate"},
		{Name: "notes"},
	}
}

// The poll that would begin a run with a hook does not wait for it: with one runner the hook itself needs the next poll.
func TestAHookDoesNotHoldThePollThatItNeeds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, gated("", 0)...)
		runner := s.register(coding)
		r := s.run(`{"type":"start_session","agent_name":"gated","prompt":"draft"}`)
		begun := time.Now()
		hook := s.finish(runner, `{"action":"continue","parameters":{"prompt":"final"}}`)
		if hook.AgentName != "gate" || !strings.Contains(hook.Prompt, r.ID) || !strings.Contains(hook.Prompt, "draft") {
			t.Errorf("the hook is %+v", hook)
		}
		got := s.finish(runner, "")
		if got.ID != r.ID || got.Prompt != "final" || string(got.Parameters) != `{"prompt":"final"}` || time.Since(begun) != 0 {
			t.Errorf("after %v the run is %+v", time.Since(begun), got)
		}
		if notes := s.finish(runner, ""); notes.AgentName != "notes" || !strings.Contains(notes.Prompt, `"status":"completed"`) {
			t.Errorf("afterwards came %+v", notes)
		}
		if p := s.poll(runner); p.Run != nil {
			t.Errorf("a hook has hooks: %+v", p.Run)
		}
	})
}

func TestAHookBlocksARun(t *testing.T) {
	for result, want := range map[string]struct {
		onError string
		status  coordapi.RunStatus
		says    string
	}{
		`{"action":"block","block_reason":"too risky"}`: {"", coordapi.RunFailed, "too risky"},
		`perhaps`:              {"", coordapi.RunPending, ""},
		`{"action":"perhaps"}`: {"block", coordapi.RunFailed, "on_run_start failed"},
		`{"action":"continue","parameters":{"n":1}}`:         {"block", coordapi.RunFailed, "parameters"},
		`{"action":"continue","parameters":{"prompt":"ok"}}`: {"block", coordapi.RunPending, ""},
		`{"action":"continue","parameters":null}`:            {"block", coordapi.RunPending, ""}, // as without them
	} {
		bubble(t, func(t *testing.T) {
			s := start(t, gated(want.onError, 0)...)
			runner := s.register(coding)
			r := s.run(`{"type":"start_session","agent_name":"gated","prompt":"x"}`)
			s.finish(runner, result)
			if got := s.state(r.ID); got.Status != want.status || !strings.Contains(got.Error, want.says) || got.Status == coordapi.RunPending && got.Prompt == "" {
				t.Errorf("%s: %+v", result, got)
			}
		})
	}
}

func TestStoppingARunStopsItsHook(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, gated("", 0)...)
		runner := s.register(coding)
		r := s.run(`{"type":"start_session","agent_name":"gated","prompt":"x"}`)
		hook := s.begin(runner)
		s.must("POST", "/sessions/"+r.SessionID+"/stop", "", nil)
		if p := s.poll(runner); len(p.StopSessions) != 1 || p.StopSessions[0] != hook.SessionID {
			t.Errorf("the runner got %+v", p)
		}
		s.report(runner, hook.ID, "stopped", "")
		if got := s.state(r.ID).Status; got != coordapi.RunStopped {
			t.Errorf("the run is %s", got)
		}
	})
}

func TestAHookThatTakesTooLongIsStopped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, gated("", 20)...)
		runner := s.register(coding)
		r := s.run(`{"type":"start_session","agent_name":"gated","prompt":"x"}`)
		hook := s.begin(runner)
		time.Sleep(30 * time.Second)
		if p := s.poll(runner); len(p.StopSessions) != 1 || p.StopSessions[0] != hook.SessionID {
			t.Errorf("the runner got %+v", p)
		}
		if got := s.claim(runner); got.ID != r.ID {
			t.Errorf("then it got %+v", got)
		}
		s.report(runner, hook.ID, "stopped", "")
		if got := s.state(hook.ID).Error; got != "stopped: it took too long" {
			t.Errorf("the error of the hook is %q", got)
		}
	})
	bubble(t, func(t *testing.T) {
		s := start(t, gated("block", 20)...)
		runner := s.register(coding)
		r := s.run(`{"type":"start_session","agent_name":"gated","prompt":"x"}`)
		s.report(runner, s.claim(runner).ID, "started", "")
		time.Sleep(30 * time.Second)
		if got := s.state(r.ID); got.Status != coordapi.RunFailed || !strings.Contains(got.Error, "on_run_start failed: it took too long") {
			t.Errorf("with on_error block it is %+v", got)
		}
	})
}

// A run whose answer was lost comes again: to the same runner, and later to another one.
func TestARunThatDidNotArriveIsHandedOutAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		other := s.register(`{"hostname":"other","executor_profile":"coding"}`)
		r := s.startSession()
		s.claim(runner)
		if p := s.poll(other); p.Run != nil {
			t.Errorf("two runners have the run: %+v", p.Run)
		}
		if got := s.claim(runner); got.ID != r.ID {
			t.Errorf("it came again as %+v", got)
		}
		s.must("POST", "/runner/heartbeat", `{"runner_id":"`+other+`"}`, nil)
		time.Sleep(66 * time.Second)
		s.fails("the first one, when no runner has it", "POST", "/runner/runs/"+r.ID+"/started", `{"runner_id":"`+runner+`"}`, 409, "waits for a runner")
		if got := s.claim(other); got.ID != r.ID {
			t.Errorf("another one got %+v", got)
		}
		s.report(other, r.ID, "started", "")
		s.fails("the first one, late", "POST", "/runner/runs/"+r.ID+"/started", `{"runner_id":"`+runner+`"}`, 409, "not_your_run")
		s.fails("its end", "POST", "/runner/runs/"+r.ID+"/completed", `{"runner_id":"`+runner+`"}`, 409, "not_your_run")
		s.report(other, r.ID, "started", "")
		s.report(other, r.ID, "completed", "")
		s.report(other, r.ID, "completed", "")
		s.fails("beginning it once more", "POST", "/runner/runs/"+r.ID+"/started", `{"runner_id":"`+other+`"}`, 409, "run_ended")
	})
}

func TestAStopThatDidNotArriveIsSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.begin(runner)
		s.must("POST", "/sessions/"+r.SessionID+"/stop", "", nil)
		for i := range 3 {
			if p := s.poll(runner); len(p.StopSessions) != 1 || p.StopSessions[0] != r.SessionID {
				t.Errorf("poll %d got %+v", i, p)
			}
		}
		s.report(runner, r.ID, "stopped", "")
		if p := s.poll(runner); len(p.StopSessions) != 0 {
			t.Errorf("afterwards came %+v", p)
		}
	})
}

func TestAStaleRunnerIsOnlineAgainWithItsNextSign(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		s.fails("a second one", "POST", "/runner/register", coding, 409, "duplicate_runner")
		status := func() string {
			var list struct{ Runners []coordapi.Runner }
			s.must("GET", "/runners", "", &list)
			return list.Runners[0].Status
		}
		time.Sleep(130 * time.Second)
		if got := status(); got != "stale" {
			t.Errorf("it is %s", got)
		}
		s.must("POST", "/runner/heartbeat", `{"runner_id":"`+runner+`"}`, nil)
		if got := status(); got != "online" {
			t.Errorf("after a heartbeat it is %s", got)
		}
		s.fails("a second one then", "POST", "/runner/register", coding, 409, "duplicate_runner")
		time.Sleep(610 * time.Second)
		s.fails("a heartbeat of one that is forgotten", "POST", "/runner/heartbeat", `{"runner_id":"`+runner+`"}`, 401, "register again")
		s.register(coding)
	})
}

// A runner that was away goes on with its runs, and one that was started again has lost them.
func TestARunnerThatComesBackKeepsItsRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		const first, second = `{"hostname":"h","executor_profile":"coding","instance":"1"}`, `{"hostname":"h","executor_profile":"coding","instance":"2"}`
		runner := s.register(first)
		r := s.startSession()
		s.begin(runner)
		time.Sleep(300 * time.Second)
		s.register(first)
		if got := s.state(r.ID).Status; got != coordapi.RunRunning {
			t.Errorf("it is %s", got)
		}
		time.Sleep(130 * time.Second)
		s.register(second)
		if got := s.state(r.ID); got.Status != coordapi.RunFailed || !strings.Contains(got.Error, "again") {
			t.Errorf("it is %+v", got)
		}
		s.fails("the first one", "GET", "/runner/runs?instance=1&runner_id="+runner, "", 409, "duplicate_runner")
		s.fails("its end", "DELETE", "/runners/"+runner+"?self=true&instance=1", "", 409, "duplicate_runner")
		s.must("GET", "/runner/runs?instance=2&runner_id="+runner, "", nil)
		s.must("DELETE", "/runners/"+runner+"?self=true&instance=2", "", nil)
	})
}

func TestTheRunsOfALostRunnerFail(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.begin(runner)
		time.Sleep(606 * time.Second)
		if got := s.state(r.ID); got.Status != coordapi.RunFailed || !strings.Contains(got.Error, "not heard of") {
			t.Errorf("it is %+v", got)
		}
	})
}

func TestARunnerThatIsRemovedLearnsOfIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		s.must("DELETE", "/runners/"+runner, "", nil)
		for range 2 {
			if p := s.poll(runner); !p.Deregistered {
				t.Errorf("it got %+v", p)
			}
		}
		s.must("DELETE", "/runners/"+runner+"?self=true", "", nil)
		s.fails("a poll afterwards", "GET", "/runner/runs?runner_id="+runner, "", 401, "register")
	})
}

func TestAStreamGoesOnAfterItsLastEvent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		r := s.startSession()
		f := s.follow("/sse/sessions", "")
		f.next()
		post := func(n int) {
			s.must("POST", "/sessions/"+r.SessionID+"/events", fmt.Sprintf(`{"event_type":"message","n":%d}`, n), nil)
		}
		number := func(data string) int {
			var ev struct{ Event struct{ N int } }
			if err := json.Unmarshal([]byte(data), &ev); err != nil {
				t.Fatalf("%q: %v", data, err)
			}
			return ev.Event.N
		}
		post(0)
		last, kind, data := f.next()
		if kind != "event" || number(data) != 0 || !strings.Contains(last, "-ev-") {
			t.Errorf("%s %s %s", last, kind, data)
		}
		f.stop()
		const missed = 200 // several batches
		for n := 1; n <= missed; n++ {
			post(n)
		}
		s.restart()
		begun := time.Now()
		again := s.follow("/sse/sessions?session_id="+r.SessionID, last)
		for n := 1; n <= missed; n++ {
			if _, kind, data := again.next(); kind != "event" || number(data) != n {
				t.Fatalf("event %d is %s %s", n, kind, data)
			}
		}
		post(missed + 1)
		if _, _, data := again.next(); number(data) != missed+1 || time.Since(begun) != 0 {
			t.Errorf("then came %s, after %v", data, time.Since(begun))
		}
		var all struct{ Events []coordapi.Event }
		if s.must("GET", "/sessions/"+r.SessionID+"/events", "", &all); len(all.Events) != missed+2 {
			t.Errorf("the list has %d events", len(all.Events))
		}
		for again.lines.Scan() { // a comment, so that nothing in between ends the stream
			if text := again.lines.Text(); text != "" {
				if text != ":" || time.Since(begun) != 30*time.Second {
					t.Errorf("after %v came %q", time.Since(begun), text)
				}
				break
			}
		}
		again.stop()
	})
}

// A client that does not read holds up neither the coordinator nor its memory: the events wait in the database.
func TestAStreamThatNobodyReadsHoldsUpNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		r := s.startSession()
		f := s.follow("/sse/sessions", "")
		synctest.Wait() // its first write waits for a reader
		for range 300 {
			s.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message"}`, nil)
		}
		if _, kind, _ := f.next(); kind != "init" {
			t.Errorf("first came %s", kind)
		}
		for range 300 {
			if _, kind, _ := f.next(); kind != "event" {
				t.Errorf("then came %s", kind)
			}
		}
		f.stop()
	})
}

// The age of a run counts from its last sign of life, and not from when it was created.
func TestARunOfWhichIsHeardDoesNotExpire(t *testing.T) {
	for name, sign := range map[string]func(*subject, string, coordapi.Run){
		"events": func(s *subject, _ string, r coordapi.Run) {
			s.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message"}`, nil)
		},
		"heartbeats that name it": func(s *subject, runner string, r coordapi.Run) {
			s.must("POST", "/runner/heartbeat", `{"runner_id":"`+runner+`","runs":["`+r.ID+`"]}`, nil)
		},
	} {
		bubble(t, func(t *testing.T) {
			s := start(t)
			runner := s.register(coding)
			r := s.startSession()
			s.begin(runner)
			lives := func() { s.must("POST", "/runner/heartbeat", `{"runner_id":"`+runner+`"}`, nil) }
			for range 60 {
				time.Sleep(60 * time.Second)
				lives()
				sign(s, runner, r)
			}
			if got := s.state(r.ID); got.Status != coordapi.RunRunning {
				t.Errorf("with %s it is %+v", name, got)
			}
			for range 16 {
				time.Sleep(60 * time.Second)
				lives()
			}
			if got := s.state(r.ID); got.Status != coordapi.RunFailed || !strings.Contains(got.Error, "15m") {
				t.Errorf("without %s it is %+v", name, got)
			}
		})
	}
}

// A bind without what the runner adds is refused, so that an executor that goes past its gateway learns of it.
func TestABindThatIsNotEnrichedIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		r := s.startSession()
		s.fails("a bind of an executor", "POST", "/sessions/"+r.SessionID+"/bind", `{"executor_session_id":"e"}`, 422, "executor_profile")
		s.fails("with the old name of the profile", "POST", "/sessions/"+r.SessionID+"/bind", `{"executor_session_id":"e","hostname":"h","executor_type":"coding"}`, 422, "executor_profile")
	})
}
