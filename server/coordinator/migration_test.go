package coordinator_test

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/server/coordinator"
)

// Version 1 did not log the caller behind the runner, and stored the stop of a run with its session.
func TestADatabaseOfVersion1(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.as("alice").startSession()
		s.begin(runner)
		s.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message","n":1}`, nil)
		s.must("POST", "/sessions/"+r.SessionID+"/stop", "", nil)
		s.close()
		s.sql("ALTER TABLE entry DROP COLUMN runner")
		s.sql("UPDATE item SET data = json_set(data, '$.stop', '" + runner + "') WHERE kind = 'session'")
		s.sql("PRAGMA user_version = 1")
		s.open()
		s.restart() // it is brought to the current version once

		f := s.as("alice").follow("/sse/sessions", "0-sc-0")
		for _, want := range []string{"session_created", "event", "session_updated"} {
			if _, kind, data := f.next(); kind != want {
				t.Errorf("the stream has %s %s, want %s", kind, data, want)
			}
		}
		f.stop()
		if p := s.poll(runner); len(p.StopSessions) != 1 || p.StopSessions[0] != r.SessionID {
			t.Errorf("the runner got %+v", p)
		}
		s.report(runner, r.ID, "stopped", "")
		if got := s.session(r.SessionID).Status; got != coordapi.SessionStopped {
			t.Errorf("the session is %s", got)
		}
		if p := s.poll(runner); len(p.StopSessions) != 0 {
			t.Errorf("afterwards came %+v", p)
		}
	})
}

// An earlier program does not write to the database of a later one.
func TestADatabaseOfALaterVersionIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		s.close()
		s.sql("PRAGMA user_version = 3")
		if _, err := coordinator.Open(t.Context(), coordinator.Config{Dir: s.dir}); err == nil || !strings.Contains(err.Error(), "version 3; this program knows versions up to 2: update it") {
			t.Errorf("the error is %v", err)
		}
		s.sql("PRAGMA user_version = 2")
		s.open() // the lock is free
	})
}
