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

// Each poll and each heartbeat of each runner is a sign of life: it is stored once a minute, with the agents of the registration, and
// wakes neither streams nor the polls of the others.
func TestSignsOfLifeCostLittle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		last := func() time.Duration {
			var list struct{ Runners []coordapi.Runner }
			s.must("GET", "/runners", "", &list)
			return time.Since(list.Runners[0].LastHeartbeat)
		}
		heartbeat := func() (int, string) {
			return s.ask("POST", "/runner/heartbeat", `{"runner_id":"`+runner+`"}`)
		}
		s.sql("CREATE TRIGGER refuse BEFORE INSERT ON item BEGIN SELECT RAISE(ABORT, 'it is written'); END")
		time.Sleep(20 * time.Second)
		s.poll(runner) // for half a minute
		time.Sleep(9 * time.Second)
		if status, answer := heartbeat(); status != 200 || last() != 0 {
			t.Errorf("within a minute the heartbeat gets %d %s, and the last one was %v ago", status, answer, last())
		}
		time.Sleep(time.Second)
		if status, _ := heartbeat(); status != 500 {
			t.Errorf("after a minute the heartbeat is not stored: %d", status)
		}
		s.sql("DROP TRIGGER refuse")
		for what, sign := range map[string]func(){"poll": func() { s.poll(runner) }, "heartbeat": func() { heartbeat() }} {
			time.Sleep(60 * time.Second)
			change, work := s.c.WaitChange(), s.c.WaitWork()
			sign()
			select {
			case <-change:
				t.Errorf("a %s wakes streams", what)
			case <-work:
				t.Errorf("a %s wakes polls", what)
			default:
			}
		}
		s.restart()
		if got := last(); got > 60*time.Second {
			t.Errorf("after a restart the last heartbeat was %v ago", got)
		}
	})
}
