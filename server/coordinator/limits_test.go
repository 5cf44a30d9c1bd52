package coordinator_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// A byte that is no UTF-8 would become three.
func TestABodyIsUTF8(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start(t).fails("another one", "POST", "/runs", `{"type":"start_session","prompt":"`+"\xff"+`"}`, 400, "invalid JSON")
	})
}

// A runner reads answers of up to 8 MiB: a run that does not fit would be handed out for ever.
func TestTheLargestRunFitsIntoThePollOfARunner(t *testing.T) {
	for _, text := range []string{"<\u2028"} {
		bubble(t, func(t *testing.T) {
			s := start(t, gated("block", 0)...)
			runner := s.register(coding)
			const around = `{"type":"start_session","agent_name":"gated","prompt":""}`
			prompt := strings.Repeat(text, (1<<20-len(around))/len(text))
			s.run(strings.Replace(around, `""`, `"`+prompt+`"`, 1))
			for _, name := range []string{"gate", "gated"} {
				status, answer := s.ask("GET", "/runner/runs?runner_id="+runner, "")
				if status != 200 || len(answer) > 8<<20 || !strings.Contains(answer, `"agent_name":"`+name+`"`) {
					t.Fatalf("%q: the poll for %s got %d with %d bytes", text, name, status, len(answer))
				}
				time.Sleep(10 * time.Second)
				s.finish(runner, `{"action":"continue"}`)
			}
			s.fails("a run that is larger", "POST", "/runs", strings.Replace(around, `""`, `"`+prompt+strings.Repeat(" ", 100)+`"`, 1), 413, "1048576")
		})
	}
}

func TestAHookCannotMakeARunTooLarge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, gated("block", 0)...)
		runner := s.register(coding)
		r := s.run(`{"type":"start_session","agent_name":"gated","prompt":"x"}`)
		s.finish(runner, `{"action":"continue","parameters":{"prompt":"`+strings.Repeat("x", 1<<20)+`"}}`)
		if got := s.state(r.ID); got.Status != coordapi.RunFailed || !strings.Contains(got.Error, "bytes") {
			t.Errorf("the run is %+v", got)
		}
	})
}

func TestARunThatNoRunnerStartsFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		for range 10 {
			if got := s.claim(runner); got.ID != r.ID {
				t.Fatalf("claimed %+v", got)
			}
			time.Sleep(66 * time.Second)
		}
		if got := s.state(r.ID); got.Status != coordapi.RunFailed || !strings.Contains(got.Error, "none has started it") {
			t.Errorf("the run is %+v", got)
		}
	})
}

// Only runs that have not ended have their prompt, so that ended ones are small, and a list has none.
func TestAnEndedRunForgetsItsPrompt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, coordapi.Agent{Name: "a", SystemPrompt: "be kind"})
		runner := s.register(coding)
		r := s.run(`{"type":"start_session","agent_name":"a","prompt":"test binding","scope":{"n":1}}`)
		var list struct{ Runs []coordapi.Run }
		s.must("GET", "/runs", "", &list)
		if got := list.Runs; len(got) != 1 || got[0].Prompt != "" || string(got[0].Parameters) != "null" || got[0].Blueprint != nil {
			t.Errorf("the list is %+v", got)
		}
		if got := s.state(r.ID); got.Prompt != "test binding" || got.Blueprint == nil {
			t.Errorf("the run is %+v", got)
		}
		s.begin(runner)
		s.report(runner, r.ID, "failed", `,"error":"`+strings.Repeat("x", 1<<20)+`"`)
		if got := s.state(r.ID); got.Prompt != "" || string(got.Parameters) != "null" || got.Blueprint != nil || string(got.Scope) != `{"n":1}` || len(got.Error) > 60_000 {
			t.Errorf("ended, the run is %.1000s", s.asText(got))
		}
		large := strings.Repeat("x", 16<<10)
		for name, value := range map[string]string{"scope": `"` + large + `"`, "project_dir": `"` + large + `"`, "additional_demands": `{"tags":["` + large + `"]}`} {
			s.fails("a large "+name, "POST", "/runs", `{"type":"start_session","prompt":"x","`+name+`":`+value+`}`, 400, name)
		}
	})
}

// An executor cannot make its session large, which all lists and streams have.
func TestWhatAnExecutorOwnsIsSmall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		at := "/sessions/" + s.startSession().SessionID
		large := strings.Repeat("x", 16<<10)
		s.fails("a large bind", "POST", at+"/bind", `{"executor_session_id":"`+large+`","hostname":"h","executor_profile":"coding"}`, 413, "16384")
		s.fails("large metadata", "PATCH", at+"/metadata", `{"project_dir":"`+large+`"}`, 413, "16384")
	})
}

func (s *subject) asText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		s.t.Error(err)
	}
	return string(text)
}

// A session whose log is full still has the results of its runs.
func TestASessionWithTheMostEventsHasResults(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.c.SetEvents(r.SessionID, 100_000)
		s.begin(runner)
		s.fails("one more", "POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message"}`, 413, "100000 events")
		s.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"result","result_text":"done"}`, nil)
		s.report(runner, r.ID, "completed", "")
		var result struct{ Result string }
		if s.must("GET", "/sessions/"+r.SessionID+"/result", "", &result); result.Result != "done" {
			t.Errorf("the result is %q", result.Result)
		}
	})
}

// sql changes the database of a coordinator.
func (s *subject) sql(statement string) {
	s.t.Helper()
	conn, err := sql.Open("sqlite", filepath.Join(s.dir, "coordinator.db"))
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = conn.ExecContext(s.t.Context(), statement)
	if err = errors.Join(err, conn.Close()); err != nil {
		s.t.Fatal(err)
	}
}

// One caller cannot fill the coordinator, and the sessions of hooks are removed by themselves.
func TestSessionsAreShared(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		ada := s.as("ada")
		first := ada.startSession()
		ada.must("POST", "/runs/"+first.ID+"/stop", "", nil)
		s.close()
		s.sql("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999) INSERT INTO item " +
			"SELECT kind, 'ses_' || i, json_set(data, '$.session_id', 'ses_' || i) FROM item, n WHERE kind = 'session'")
		s.open()
		ada = s.as("ada")
		ada.fails("one more", "POST", "/runs", `{"type":"start_session","prompt":"x"}`, 429, "1000 sessions")
		s.as("bob").startSession()
		s.startSession()
		ada.run(`{"type":"resume_session","session_id":"ses_1","prompt":"x"}`)
		ada.must("DELETE", "/sessions/ses_2", "", nil)
		ada.startSession()
	})
}

func TestTheSessionOfAHookIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, gated("", 0)...)
		runner := s.register(coding)
		s.run(`{"type":"start_session","agent_name":"gated","prompt":"x"}`)
		hook := s.finish(runner, `{"action":"continue"}`)
		s.report(runner, hook.ID, "completed", "") // sent again
		s.finish(runner, "")
		sessions := func() int {
			var list struct{ Sessions []coordapi.Session }
			s.must("GET", "/sessions", "", &list)
			return len(list.Sessions)
		}
		if n := sessions(); n != 3 {
			t.Errorf("at first there are %d", n)
		}
		s.claim(runner) // the other hook
		time.Sleep(608 * time.Second)
		if n := sessions(); n != 2 {
			t.Errorf("then there are %d", n)
		}
	})
}

// That a run is alive is not stored, and neither is what an event changes of its session: each event would write the run with its
// prompt, and the session with its result.
func TestASignOfLifeDoesNotWriteTheRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.begin(runner)
		s.close()
		s.sql("CREATE TRIGGER refuse BEFORE INSERT ON item WHEN NEW.kind IN ('run', 'session') BEGIN SELECT RAISE(ABORT, 'it is written'); END")
		s.open()
		time.Sleep(time.Second)
		before := s.session(r.SessionID).LastActivity
		s.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message"}`, nil)
		s.must("POST", "/runner/heartbeat", `{"runner_id":"`+runner+`","runs":["`+r.ID+`"]}`, nil)
		after := s.session(r.SessionID).LastActivity
		counted := s.c.Events(r.SessionID)
		if s.restart(); counted != 1 || s.c.Events(r.SessionID) != 1 {
			t.Errorf("it has %d events, after a restart %d", counted, s.c.Events(r.SessionID))
		}
		if !after.After(before) || s.session(r.SessionID).LastActivity.Sub(after).Abs() >= time.Millisecond {
			t.Errorf("the last activity is at %v and then %v, after a restart %v", before, after, s.session(r.SessionID).LastActivity)
		}
	})
}
