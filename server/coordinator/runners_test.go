package coordinator_test

import (
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// A restart of the coordinator is no sign of life: a runner that was killed before it is soon stale, and its place is free. One
// that lives has time to come back.
func TestARestartIsNoSignOfLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		const killed = `{"hostname":"killed","executor_profile":"coding","instance":"1"}`
		s.register(killed)
		lives := s.register(coding)
		of := func(host string) (r coordapi.Runner) {
			t.Helper()
			var list struct{ Runners []coordapi.Runner }
			s.must("GET", "/runners", "", &list)
			for _, r = range list.Runners {
				if r.Hostname == host {
					return r
				}
			}
			t.Fatalf("there is no runner of %s in %+v", host, list)
			return r
		}
		last := of("killed").LastHeartbeat
		time.Sleep(100 * time.Second)
		s.must("POST", "/runner/heartbeat", `{"runner_id":"`+lives+`"}`, nil)
		s.close()
		time.Sleep(time.Hour)
		s.open()
		if got := of("killed"); !got.LastHeartbeat.Equal(last) {
			t.Errorf("after the restart it was heard of at %v, and before at %v", got.LastHeartbeat, last)
		}
		time.Sleep(50 * time.Second)
		const successor = `{"hostname":"killed","executor_profile":"coding","instance":"2"}`
		s.fails("a successor, early", "POST", "/runner/register", successor, 409, "duplicate_runner")
		if got := of("h").Status; got != "online" {
			t.Errorf("after 50s the one that lives is %s", got)
		}
		s.must("POST", "/runner/heartbeat", `{"runner_id":"`+lives+`"}`, nil)
		time.Sleep(20 * time.Second)
		if got := of("killed").Status; got != "stale" {
			t.Errorf("after 70s the one that was killed is %s", got)
		}
		if got := of("h").Status; got != "online" {
			t.Errorf("after 70s the one that lives is %s", got)
		}
		s.register(successor)
	})
}

// Runs cannot be claimed while there is no coordinator: after a restart they, and the hooks that they wait for, have their full time.
func TestARestartGivesPendingRunsTheirTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, gated("", 20)...)
		r := s.startSession()
		waits := s.run(`{"type":"start_session","agent_name":"gated","prompt":"draft"}`)
		s.close()
		time.Sleep(time.Hour)
		s.open()
		for id, want := range map[string]time.Duration{r.ID: 300 * time.Second, waits.ID: 20 * time.Second} {
			if got := s.state(id); got.TimeoutAt == nil || time.Until(*got.TimeoutAt) != want {
				t.Errorf("after the restart it is %+v, want %v from now as its timeout", got, want)
			}
		}
		time.Sleep(10 * time.Second)
		runner := s.register(coding)
		if got := s.finish(runner, ""); got.ID != r.ID {
			t.Errorf("first the runner got %+v", got)
		}
		if got := s.finish(runner, `{"action":"continue","parameters":{"prompt":"final"}}`); got.AgentName != "gate" {
			t.Errorf("then it got %+v", got)
		}
		if got := s.claim(runner); got.ID != waits.ID || got.Prompt != "final" {
			t.Errorf("at the end it got %+v", got)
		}
	})
}
