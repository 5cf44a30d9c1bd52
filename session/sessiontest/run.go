package sessiontest

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// run is one rule that is checked.
type run struct {
	*testing.T
	env  environment.Config
	host Host
}

// steps are what the agent does with one prompt.
type steps = []runnerscripts.ScenarioStep

func say(text string) runnerscripts.ScenarioStep { return runnerscripts.ScenarioStep{Text: text} }

func write(path, content string) runnerscripts.ScenarioStep {
	return runnerscripts.ScenarioStep{Write: &runnerscripts.ScenarioWrite{Path: path, Content: content}}
}

func ask(step runnerscripts.ScenarioStep) runnerscripts.ScenarioStep {
	return runnerscripts.ScenarioStep{Ask: &step}
}

// shell is a step that runs a command of a shell.
func shell(script string) runnerscripts.ScenarioStep {
	return runnerscripts.ScenarioStep{Run: []string{"sh", "-c", script}}
}

// forever is a step that only an interrupt ends.
func forever() runnerscripts.ScenarioStep { return runnerscripts.ScenarioStep{DelayMS: 3_600_000} }

// config returns the configuration of a session whose agent plays the turns, one for each prompt.
func (r *run) config(turns ...steps) session.Config {
	r.Helper()
	var s runnerscripts.Scenario
	for _, t := range turns {
		s.Turns = append(s.Turns, runnerscripts.ScenarioTurn{Steps: t})
	}
	data, err := json.Marshal(s)
	if err != nil {
		r.Fatal(err)
	}
	cfg := session.Config{Environment: r.env}
	cfg.Environment.Agent = environment.Agent{Name: "script", Config: data}
	cfg.Environment.OnPermission = environment.AnswerLater
	return cfg
}

// start creates a session whose agent plays the turns.
func (r *run) start(turns ...steps) Session {
	r.Helper()
	return r.create(r.config(turns...))
}

func (r *run) create(cfg session.Config) Session {
	r.Helper()
	s, err := r.host.Create(r.Context(), cfg)
	r.must(err)
	return s
}

func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// want fails unless err is the expected one.
func (r *run) want(what string, err, expected error) {
	r.Helper()
	if !errors.Is(err, expected) {
		r.Errorf("%s: error %v, want %v", what, err, expected)
	}
}

func (r *run) prompt(s Session, text string) Turn {
	r.Helper()
	t, err := s.Prompt(r.Context(), text)
	r.must(err)
	return t
}

// complete waits for the end of a query, which must complete.
func (r *run) complete(t Turn) runnerscripts.QueryCompleted {
	r.Helper()
	done, err := t.Wait(r.Context())
	r.must(err)
	return done
}

// ask sends a prompt, waits for its end, and returns what the agent said.
func (r *run) converse(s Session, text string) string {
	r.Helper()
	t := r.prompt(s, text)
	r.complete(t)
	return said(r.events(t))
}

// events returns all events of a query.
func (r *run) events(t Turn) []runnerscripts.Event {
	r.Helper()
	var all []runnerscripts.Event
	for ev, err := range t.Events(r.Context()) {
		r.must(err)
		all = append(all, ev)
	}
	return all
}

// said returns what the agent said in events.
func said(events []runnerscripts.Event) string {
	var b strings.Builder
	for _, ev := range events {
		if ev.Type == runnerscripts.TypeAgentMessage {
			b.WriteString(ev.Text())
		}
	}
	return b.String()
}

func (r *run) state(s Session) session.State {
	r.Helper()
	state, err := s.State(r.Context())
	r.must(err)
	return state
}

// log returns the events of a session so far.
func (r *run) log(s Session) []runnerscripts.Event {
	r.Helper()
	last := r.state(s).LastSeq
	var all []runnerscripts.Event
	if last == 0 {
		return nil
	}
	for ev, err := range s.Events(r.Context(), 0) {
		r.must(err)
		if all = append(all, ev); ev.Seq >= last {
			break
		}
	}
	return all
}

// await returns the first event of a type, and waits for it.
func (r *run) await(s Session, typ runnerscripts.EventType) runnerscripts.Event {
	r.Helper()
	for ev, err := range s.Events(r.Context(), 0) {
		r.must(err)
		if ev.Type == typ {
			return ev
		}
	}
	r.Fatalf("the session ended without %s", typ)
	return runnerscripts.Event{}
}

// asked waits for a permission request and returns it.
func (r *run) asked(s Session) runnerscripts.PermissionRequest {
	r.Helper()
	req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](r.await(s, runnerscripts.TypePermissionRequest))
	r.must(err)
	return req
}

// content returns the content of a file of the workspace; "none" if it does not exist.
func (r *run) content(s Session, name string) string {
	r.Helper()
	files, err := s.Files(r.Context(), environment.FilesOptions{MaxContent: 1 << 20})
	r.must(err)
	for _, f := range files {
		if f.Path == name {
			return string(f.Content)
		}
	}
	return "none"
}

func count(events []runnerscripts.Event, typ runnerscripts.EventType) int {
	n := 0
	for _, ev := range events {
		if ev.Type == typ {
			n++
		}
	}
	return n
}
