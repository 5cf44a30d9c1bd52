package coordinator_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/server/coordinator"
)

func TestARunFromItsRequestToItsResult(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		if !strings.HasPrefix(r.ID, "run_") || len(r.ID) != 16 || !strings.HasPrefix(r.SessionID, "ses_") || len(r.SessionID) != 16 || len(runner) != 17 {
			t.Errorf("the run is %+v", r)
		}
		if got := s.session(r.SessionID).Status; got != coordapi.SessionPending {
			t.Errorf("the session is %s", got)
		}
		got := s.claim(runner)
		if got.ID != r.ID || got.Prompt != "test binding" || string(got.Parameters) != `{"prompt":"test binding"}` || got.Status != coordapi.RunClaimed {
			t.Errorf("claimed %+v", got)
		}
		s.report(runner, r.ID, "started", "")
		s.must("POST", "/sessions/"+r.SessionID+"/bind", `{"executor_session_id":"uuid","hostname":"h","executor_profile":"coding","project_dir":"/w"}`, nil)
		s.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message","role":"assistant","content":[{"type":"text","text":"hi"}]}`, nil)
		s.fails("the result of a session that runs", "GET", "/sessions/"+r.SessionID+"/result", "", 400, "running")
		s.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"result","session_id":"`+r.SessionID+`","result_text":"done"}`, nil)
		s.report(runner, r.ID, "completed", `,"status":"success"`)

		if got := s.session(r.SessionID); got.Status != coordapi.SessionFinished || got.ExecutorProfile != "coding" || got.Hostname != "h" || got.ProjectDir != "/w" {
			t.Errorf("the session is %+v", got)
		}
		var result struct{ Result string }
		s.must("GET", "/sessions/"+r.SessionID+"/result", "", &result)
		var events struct{ Events []coordapi.Event }
		s.must("GET", "/sessions/"+r.SessionID+"/events", "", &events)
		var at struct{ Affinity coordapi.Affinity }
		s.must("GET", "/sessions/"+r.SessionID+"/affinity", "", &at)
		if result.Result != "done" || len(events.Events) != 2 || events.Events[0].Content[0].Text != "hi" || at.Affinity.ExecutorSessionID != "uuid" {
			t.Errorf("the result is %q, the events %+v, at %+v", result.Result, events, at)
		}

		// It is resumed where it is, and nowhere else.
		elsewhere := []string{s.register(`{"hostname":"other","executor_profile":"coding"}`), s.register(`{"hostname":"h","executor_profile":"other"}`)}
		next := s.run(`{"type":"resume_session","session_id":"` + r.SessionID + `","prompt":"more"}`)
		for _, id := range elsewhere {
			if p := s.poll(id); p.Run != nil {
				t.Errorf("another runner got %+v", p.Run)
			}
		}
		s.must("POST", "/runner/heartbeat", `{"runner_id":"`+runner+`"}`, nil)
		if got := s.finish(runner, "more done"); got.ID != next.ID || got.ExecutorSessionID != "uuid" {
			t.Errorf("resumed %+v", got)
		}
		s.must("PATCH", "/sessions/"+r.SessionID+"/metadata", `{"executor_session_id":"other","project_dir":"/other"}`, nil)
		if got := s.session(r.SessionID); got.ExecutorSessionID != "other" || got.ProjectDir != "/other" || got.Hostname != "h" {
			t.Errorf("with other metadata the session is %+v", got)
		}
		if got := s.session(r.SessionID); got.LastResumedAt == nil || got.Status != coordapi.SessionFinished {
			t.Errorf("the resumed session is %+v", got)
		}
	})
}

func TestDemandsChooseTheRunner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, coordapi.Agent{Name: "tagged", Demands: coordapi.Demands{Tags: []string{"gpu"}, Hostname: "h"}})
		plain := s.register(coding)
		gpu := s.register(`{"hostname":"h","project_dir":"/p","executor_profile":"gpu","executor":{"type":"codex"},"tags":["gpu","big"],"require_matching_tags":true}`)
		for demands, want := range map[string]string{
			`{"executor_profile":"coding"}`:             plain,
			`{"executor_type":"codex","tags":["big"]}`:  gpu,
			`{"tags":["gpu","big"]}`:                    gpu,
			`{"hostname":"h","executor_type":"claude"}`: plain,
			`{"project_dir":"/p","tags":["gpu"]}`:       gpu,
			`{"project_dir":"/other"}`:                  "",
			`{"tags":["gpu","small"]}`:                  "",
			`{"hostname":"elsewhere"}`:                  "",
			`{"executor_profile":"other"}`:              "",
			`{"executor_type":"codex","hostname":"h"}`:  "", // the one that has it wants a tag
			`{}`: plain,
		} {
			r := s.run(`{"type":"start_session","prompt":"x","additional_demands":` + demands + `}`)
			for _, id := range []string{plain, gpu} {
				if p := s.poll(id); (p.Run != nil) != (id == want) {
					t.Errorf("%s: the runner %s got %+v, want %s", demands, id, p.Run, want)
				}
			}
			if want == "" {
				s.must("POST", "/runs/"+r.ID+"/stop", "", nil)
			} else {
				s.report(want, r.ID, "started", "")
				s.report(want, r.ID, "completed", "")
			}
		}
		r := s.run(`{"type":"start_session","agent_name":"tagged","prompt":"x","additional_demands":{"tags":["big"]}}`)
		if d := r.Demands; d.Hostname != "h" || strings.Join(d.Tags, " ") != "big gpu" {
			t.Errorf("the demands are %+v", d)
		}
		s.fails("a demand that takes another away", "POST", "/runs",
			`{"type":"start_session","agent_name":"tagged","prompt":"x","additional_demands":{"hostname":"elsewhere"}}`, 400, "conflicting_demands")
	})
}

func TestARunThatNoRunnerCanTakeFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		r := s.run(`{"type":"start_session","prompt":"x","additional_demands":{"hostname":"nowhere"}}`)
		time.Sleep(299 * time.Second)
		if got := s.state(r.ID).Status; got != coordapi.RunPending {
			t.Errorf("early it is %s", got)
		}
		time.Sleep(10 * time.Second)
		if got := s.state(r.ID); got.Status != coordapi.RunFailed || !strings.Contains(got.Error, "nowhere") {
			t.Errorf("late it is %+v", got)
		}
		if got := s.session(r.SessionID).Status; got != coordapi.SessionFailed {
			t.Errorf("its session is %s", got)
		}
		// One that a runner could take waits for it.
		runner := s.register(coding)
		waits := s.startSession()
		for range 10 {
			time.Sleep(60 * time.Second)
			s.must("POST", "/runner/heartbeat", `{"runner_id":"`+runner+`"}`, nil)
		}
		if got := s.claim(runner); got.ID != waits.ID {
			t.Errorf("after ten minutes the runner got %+v", got)
		}
	})
}

func TestParametersAreChecked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, coordapi.Agent{Name: "sum", ParametersSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)})
		for body, want := range map[string]coordapi.ValidationError{
			`{"type":"start_session"}`:                                                    {Path: "$", SchemaPath: "required"},
			`{"type":"start_session","parameters":{"prompt":1}}`:                          {Path: "$.prompt", SchemaPath: "properties/prompt/type"},
			`{"type":"start_session","agent_name":"sum","parameters":{}}`:                 {Path: "$", SchemaPath: "required"},
			`{"type":"start_session","agent_name":"sum","parameters":{"n":"much"}}`:       {Path: "$.n", SchemaPath: "properties/n/type"},
			`{"type":"start_session","parameters":{"prompt":"x","more":"than a prompt"}}`: {Path: "$.more", SchemaPath: "additionalProperties"},
		} {
			status, answer := s.ask("POST", "/runs", body)
			var said struct{ Detail coordapi.Detail }
			if err := json.Unmarshal([]byte(answer), &said); err != nil || status != 400 || said.Detail.Error != "parameter_validation_failed" {
				t.Fatalf("%s: %d %s", body, status, answer)
			}
			if got := said.Detail.ValidationErrors[0]; len(said.Detail.ValidationErrors) != 1 || got.Path != want.Path || !strings.HasPrefix(got.SchemaPath, want.SchemaPath) || got.Message == "" {
				t.Errorf("%s: %+v", body, got)
			}
		}
		_, both := s.ask("POST", "/runs", `{"type":"start_session","parameters":{"prompt":1,"more":2}}`)
		if strings.Count(both, `"schema_path"`) != 2 {
			t.Errorf("of two violations there is %s", both)
		}
		r := s.run(`{"type":"start_session","agent_name":"sum","parameters":{"n":3}}`)
		if string(r.Parameters) != `{"n":3}` || r.Blueprint.Name != "sum" {
			t.Errorf("the run is %+v", r)
		}
		for what, c := range map[string]struct {
			body, says string
			status     int
		}{
			"an unknown agent":     {`{"type":"start_session","agent_name":"none","prompt":"x"}`, "agent_not_found", 404},
			"an unknown session":   {`{"type":"resume_session","session_id":"ses_none","prompt":"x"}`, "ses_none", 404},
			"no session":           {`{"type":"resume_session","prompt":"x"}`, "session_id required", 400},
			"parameters for none":  {`{"type":"start_session","parameters":{"n":1}}`, "name such an agent", 400},
			"a resume with more":   {`{"type":"resume_session","session_id":"` + r.SessionID + `","parameters":{"n":3}}`, `"a resume takes a prompt alone: give prompt`, 400},
			"an unknown type":      {`{"type":"begin","prompt":"x"}`, "start_session", 400},
			"an unknown key":       {`{"type":"start_session","prompt":"x","demands":{}}`, "demands", 400},
			"a key twice":          {`{"type":"start_session","prompt":"x","prompt":"y"}`, "prompt", 400},
			"two prompts":          {`{"type":"start_session","prompt":"x","parameters":{"prompt":"y"}}`, "give one", 400},
			"an own ID":            {`{"type":"start_session","session_id":"mine","prompt":"x"}`, "session_id", 400},
			"no JSON":              {`{`, "invalid JSON", 400},
			"a callback to nobody": {`{"type":"start_session","prompt":"x","execution_mode":"async_callback"}`, "parent_session_id", 400},
			"too much":             {`{"type":"start_session","prompt":"` + strings.Repeat("x", 4<<20) + `"}`, "1048576", 413},
		} {
			s.fails(what, "POST", "/runs", c.body, c.status, c.says)
		}
	})
}

func TestOneRunOfASessionAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		first := s.startSession()
		second := s.run(`{"type":"resume_session","session_id":"` + first.SessionID + `","prompt":"more"}`)
		if got := s.claim(runner); got.ID != first.ID {
			t.Fatalf("first %+v", got)
		}
		s.report(runner, first.ID, "started", "")
		if p := s.poll(runner); p.Run != nil {
			t.Errorf("while the first runs: %+v", p.Run)
		}
		s.must("POST", "/sessions/"+first.SessionID+"/bind", `{"executor_session_id":"uuid","hostname":"h","executor_profile":"coding"}`, nil)
		s.report(runner, first.ID, "completed", `,"session_status":"idle"`)
		if got := s.session(first.SessionID).Status; got != coordapi.SessionIdle {
			t.Errorf("the session is %s", got)
		}
		if got := s.finish(runner, ""); got.ID != second.ID || got.ExecutorSessionID != "uuid" {
			t.Errorf("then %+v", got)
		}
	})
}

func TestASessionIsStoppedAndDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		waits := s.startSession()
		s.must("POST", "/sessions/"+waits.SessionID+"/stop", "", nil)
		s.must("POST", "/sessions/"+waits.SessionID+"/stop", "", nil)
		runner := s.register(coding)
		claimed := s.startSession()
		s.claim(runner)
		s.must("POST", "/sessions/"+claimed.SessionID+"/stop", "", nil)
		for _, id := range []string{waits.ID, claimed.ID} {
			if got := s.state(id).Status; got != coordapi.RunStopped {
				t.Errorf("a run that has not started is %s", got)
			}
		}
		s.fails("starting it", "POST", "/runner/runs/"+claimed.ID+"/started", `{"runner_id":"`+runner+`"}`, 409, "do not run it")
		r := s.startSession()
		s.begin(runner)
		s.fails("deleting a session that runs", "DELETE", "/sessions/"+r.SessionID, "", 409, "stop")
		s.must("POST", "/sessions/"+r.SessionID+"/stop", "", nil)
		if p := s.poll(runner); len(p.StopSessions) != 1 || p.StopSessions[0] != r.SessionID {
			t.Errorf("the runner got %+v", p)
		}
		s.restart()
		s.report(runner, r.ID, "stopped", `,"signal":"SIGKILL"`)
		if got := s.state(r.ID).Error; got != "stopped by a client" {
			t.Errorf("the error of a run that a client has stopped is %q", got)
		}
		if got := s.session(r.SessionID).Status; got != coordapi.SessionStopped {
			t.Errorf("the session is %s", got)
		}
		s.startSession()
		own := s.begin(runner)
		s.report(runner, own.ID, "stopped", `,"signal":"SIGKILL"`)
		if got := s.state(own.ID).Error; got != "stopped by its runner: SIGKILL" {
			t.Errorf("the error of a run that its runner has stopped is %q", got)
		}
		s.must("DELETE", "/sessions/"+r.SessionID, "", nil)
		s.fails("a deleted session", "GET", "/sessions/"+r.SessionID, "", 404, r.SessionID)
		s.fails("a run of a deleted session", "GET", "/runs/"+r.ID, "", 404, r.ID)
		var status struct{ Status string }
		if s.must("GET", "/sessions/"+r.SessionID+"/status", "", &status); status.Status != "not_existent" {
			t.Errorf("its status is %q", status.Status)
		}
	})
}

func TestEverythingSurvivesARestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		claimed := s.startSession()
		s.claim(runner)
		running := s.startSession()
		if got := s.claim(runner); got.ID != running.ID {
			t.Fatalf("claimed %+v", got)
		}
		s.report(runner, running.ID, "started", "")
		s.must("POST", "/sessions/"+running.SessionID+"/stop", "", nil)
		pending := s.startSession()
		s.restart()
		for id, want := range map[string]coordapi.RunStatus{claimed.ID: coordapi.RunClaimed, running.ID: coordapi.RunStopping, pending.ID: coordapi.RunPending} {
			if got := s.state(id).Status; got != want {
				t.Errorf("a run is %s, want %s", got, want)
			}
		}
		if p := s.poll(runner); len(p.StopSessions) != 1 {
			t.Errorf("the stop is lost: %+v", p)
		}
		if got := s.claim(runner); got.ID != claimed.ID {
			t.Errorf("the claimed run is lost: %+v", got)
		}
		if got := s.claim(runner); got.ID != pending.ID {
			t.Errorf("the pending run is lost: %+v", got)
		}
		s.report(runner, running.ID, "stopped", "")
		if other, err := coordinator.Open(t.Context(), coordinator.Config{Dir: s.dir}); !errors.Is(err, coordinator.ErrInUse) {
			t.Errorf("a second program: %v, %v", other, err)
		}
	})
}

func TestAnEventThatIsSentAgainIsOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		r := s.startSession()
		for range 2 {
			s.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message","event_id":"1"}`, nil)
		}
		s.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message"}`, nil)
		var events struct{ Events []coordapi.Event }
		if s.must("GET", "/sessions/"+r.SessionID+"/events", "", &events); len(events.Events) != 2 {
			t.Errorf("there are %+v", events.Events)
		}
		s.fails("an event of another session", "POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message","session_id":"ses_other"}`, 400, "ses_other")
		s.fails("an event without a type", "POST", "/sessions/"+r.SessionID+"/events", `{}`, 422, "event_type")
		s.fails("no event", "POST", "/sessions/"+r.SessionID+"/events", ``, 400, "required")
	})
}

func TestACallerSeesItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		alice, bob, ci := s.as("alice"), s.as("bob"), s.as("ci")
		r := alice.startSession()
		bob.fails("a session of another", "GET", "/sessions/"+r.SessionID, "", 404, r.SessionID)
		bob.fails("stopping it", "POST", "/sessions/"+r.SessionID+"/stop", "", 404, r.SessionID)
		bob.fails("deleting it", "DELETE", "/sessions/"+r.SessionID, "", 404, r.SessionID)
		bob.fails("its run", "GET", "/runs/"+r.ID, "", 404, r.ID)
		bob.fails("resuming it", "POST", "/runs", `{"type":"resume_session","session_id":"`+r.SessionID+`","prompt":"x"}`, 404, r.SessionID)
		bob.fails("being its child", "POST", "/runs", `{"type":"start_session","parent_session_id":"`+r.SessionID+`","prompt":"x"}`, 404, r.SessionID)
		ci.fails("before its runner has it", "POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message"}`, 404, r.SessionID)
		runner := ci.register(coding)
		bob.fails("a runner of another", "GET", "/runner/runs?runner_id="+runner, "", 401, "register")
		ci.begin(runner)
		ci.must("POST", "/sessions/"+r.SessionID+"/events", `{"event_type":"message"}`, nil)
		for who, n := range map[*subject]int{alice: 1, bob: 0, ci: 1, s: 1} {
			var list struct{ Sessions []coordapi.Session }
			if who.must("GET", "/sessions", "", &list); len(list.Sessions) != n {
				t.Errorf("%q sees %d sessions", who.caller.Name, len(list.Sessions))
			}
		}
	})
}

func TestARunnerBringsAgents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t, coordapi.Agent{Name: "mine"})
		s.register(coding)
		with := func(host, agent string) string {
			return `{"hostname":"` + host + `","executor_profile":"scripts","agents":[{"name":"` + agent + `","parameters_schema":{"type":"object","required":["n"]}}]}`
		}
		runner := s.register(with("h", "count"))
		s.fails("the agent of another runner", "POST", "/runner/register", with("other", "count"), 409, "agent_name_collision")
		s.fails("an agent of the coordinator", "POST", "/runner/register", with("other", "mine"), 409, "agent_name_collision")
		s.fails("two agents of a name", "POST", "/runner/register", `{"hostname":"other","executor_profile":"scripts","agents":[{"name":"a"},{"name":"a"}]}`, 409, "agent_name_collision")
		s.fails("an agent without a name", "POST", "/runner/register", with("other", ""), 400, "agents[0]")
		s.fails("a parameter that is missing", "POST", "/runs", `{"type":"start_session","agent_name":"count"}`, 400, "parameter_validation_failed")
		r := s.run(`{"type":"start_session","agent_name":"count","parameters":{"n":1}}`)
		if r.Demands.ExecutorProfile != "scripts" || r.Demands.Hostname != "h" {
			t.Errorf("it demands %+v", r.Demands)
		}
		if got := s.claim(runner); got.ID != r.ID {
			t.Errorf("its runner got %+v", got)
		}
		var list struct{ Agents []coordapi.Agent }
		if s.must("GET", "/agents", "", &list); len(list.Agents) != 2 || list.Agents[0].Name != "count" {
			t.Errorf("the agents are %+v", list.Agents)
		}
	})
}

func TestAnIdleSessionIsStoppedByItsRunner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t)
		runner := s.register(coding)
		r := s.startSession()
		s.begin(runner)
		status := "/runner/sessions/" + r.SessionID + "/status"
		s.fails("a status beside a run", "POST", status, `{"runner_id":"`+runner+`","status":"idle"}`, 409, "report its end")
		s.report(runner, r.ID, "completed", `,"session_status":"idle"`)
		s.fails("deleting it", "DELETE", "/sessions/"+r.SessionID, "", 409, "idle")
		s.must("POST", "/sessions/"+r.SessionID+"/stop", "", nil)
		if p := s.poll(runner); len(p.StopSessions) != 1 {
			t.Errorf("the runner got %+v", p)
		}
		s.must("POST", status, `{"runner_id":"`+runner+`","status":"stopped"}`, nil)
		if p := s.poll(runner); len(p.StopSessions) != 0 {
			t.Errorf("then it got %+v", p)
		}
		s.must("DELETE", "/sessions/"+r.SessionID, "", nil)
	})
}

// A caller that is no admin cannot fill the coordinator with runs.
func TestACallerHasSoManyRuns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := start(t).as("alice")
		for range 99 {
			s.startSession()
		}
		last := s.startSession()
		s.fails("one more", "POST", "/runs", `{"type":"start_session","prompt":"x"}`, 429, "100")
		s.must("POST", "/runs/"+last.ID+"/stop", "", nil)
		s.startSession()
	})
}
