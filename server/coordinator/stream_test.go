package coordinator_test

import (
	"strings"
	"testing"
	"testing/synctest"
)

// A stream has the events of the sessions that a caller's runner has, as long as it has them, and of no others.
func TestARunnerFollowsItsSessions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		s.close() // the database of an earlier version
		s.sql("ALTER TABLE entry DROP COLUMN runner")
		s.sql("PRAGMA user_version = 1")
		s.open()
		alice, ci, other := s.as("alice"), s.as("ci"), s.as("other")
		all, others := ci.follow("/sse/sessions", ""), other.follow("/sse/sessions", "")
		all.next()
		others.next()
		r, theirs := alice.startSession(), other.startSession()
		runner := ci.register(coding)
		ci.begin(runner)
		one := ci.follow("/sse/sessions?session_id="+r.SessionID, "")
		one.next()
		alice.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message"}`, nil)
		for _, f := range []*follow{all, one} {
			for _, want := range []string{"session_updated", "event"} {
				if f == one && want != "event" {
					continue
				}
				if _, kind, data := f.next(); kind != want || !strings.Contains(data, r.SessionID) && want != "event" {
					t.Errorf("the runner sees %s %s", kind, data)
				}
			}
		}
		if _, kind, data := others.next(); kind != "session_created" || !strings.Contains(data, theirs.SessionID) {
			t.Errorf("another caller sees %s %s", kind, data)
		}
		ci.report(runner, r.ID, "completed", "")
		ci.must("DELETE", "/runners/"+runner+"?self=true", "", nil)
		all.next()
		one.next()
		again := other.register(coding)
		next := alice.run(`{"type":"resume_session","session_id":"` + r.SessionID + `","prompt":"x"}`)
		if got := other.claim(again); got.ID != next.ID {
			other.report(again, got.ID, "started", "")
			other.report(again, got.ID, "completed", "")
			next = other.claim(again)
		}
		other.report(again, next.ID, "started", "")
		for one.lines.Scan() { // to its end
			if line := one.lines.Text(); line != "" {
				t.Fatalf("the runner that had the session goes on to see %s", line)
			}
		}
		mine := ci.startSession()
		if _, kind, data := all.next(); kind != "session_created" || !strings.Contains(data, mine.SessionID) {
			t.Errorf("the runner that had the session sees %s %s", kind, data)
		}
		alice.must("POST", "/sessions/"+r.SessionID+"/stop", "", nil)
		other.report(again, next.ID, "stopped", "")
		alice.must("DELETE", "/sessions/"+r.SessionID, "", nil)
		for kind := ""; kind != "session_deleted"; {
			_, kind, _ = others.next()
		}
		for _, f := range []*follow{all, others, one} {
			f.stop()
		}
	})
}

func TestAStreamBeginsWithTheSessions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		r := s.as("alice").startSession()
		f, other := s.follow("/sse/sessions", ""), s.as("bob").follow("/sse/sessions", "")
		if _, kind, data := f.next(); kind != "init" || !strings.Contains(data, r.SessionID) {
			t.Errorf("first %s %s", kind, data)
		}
		if _, kind, data := other.next(); kind != "init" || data != `{"sessions":[]}` {
			t.Errorf("another one has %s %s", kind, data)
		}
		for _, c := range []struct{ method, path, want string }{{"POST", "/stop", "session_updated"}, {"DELETE", "", "session_deleted"}} {
			s.must(c.method, "/sessions/"+r.SessionID+c.path, "", nil)
			want := c.want
			if _, kind, data := f.next(); kind != want || !strings.Contains(data, r.SessionID) {
				t.Errorf("%s %s, want %s", kind, data, want)
			}
		}
		mine := s.as("bob").startSession()
		if _, kind, data := other.next(); kind != "session_created" || !strings.Contains(data, mine.SessionID) {
			t.Errorf("another one has %s %s", kind, data)
		}
		f.stop()
		other.stop()
	})
}

// A stream does not read again what it has passed over: the log may have a hundred thousand events of others.
func TestAStreamReadsTheEventsOfOthersOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		f := s.as("alice").follow("/sse/sessions", "")
		f.next()
		s.as("bob").startSession()
		synctest.Wait() // the stream has passed it
		s.sql("UPDATE entry SET owner = 'alice'")
		mine := s.as("alice").startSession()
		if _, kind, data := f.next(); kind != "session_created" || !strings.Contains(data, mine.SessionID) {
			t.Errorf("the stream has read %s %s again", kind, data)
		}
		f.stop()
	})
}
