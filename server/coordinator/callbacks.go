package coordinator

import (
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// maxResult is how many bytes of a result a callback has, and maxResults is for all callbacks that a parent gets at once: HTML and JSON
// make six bytes of one, and the answer to a poll has them twice.
const maxResult, maxResults = 50_000, 500_000

// maxCallbacks is how many callbacks may wait for a parent, with those of children that have not ended.
const maxCallbacks = 1_000

// maxTries is how many runs with a callback may start and fail before their agent has it: it may be why they fail.
const maxTries = 3

// callback is the end of a child's run, for its parent.
type callback struct {
	Session string             `json:"session"`
	Run     string             `json:"run"`
	Agent   string             `json:"agent,omitempty"`
	Status  coordapi.RunStatus `json:"status"`
	Text    string             `json:"text,omitempty"`
	// Tries counts the runs that had it and failed without an event.
	Tries int `json:"tries,omitempty"`
}

// callBack keeps the end of a run for its parent, if the run was to call back, and delivers it if the parent is free.
func (t *tx) callBack(r *run, s *session) {
	if r.ExecutionMode != coordapi.ModeAsyncCallback {
		return
	}
	parent := t.session(r.ParentSessionID)
	if parent == nil {
		return // it was deleted
	}
	text := r.Error
	if r.Status == coordapi.RunCompleted && s.Result != nil {
		if text = s.Result.Text; text == "" {
			text = string(s.Result.Data)
		}
	}
	text = coordapi.Cut(text, maxResult)
	parent.Callbacks = bounded(parent.Callbacks, callback{Session: r.SessionID, Run: r.ID, Agent: r.AgentName, Status: r.Status, Text: text})
	t.deliver(parent)
}

// waiting returns how many callbacks a session has, or will have from children that have not ended.
func (t *tx) waiting(s *session) int {
	n := len(s.Callbacks)
	for _, r := range t.selectRuns(func(*run) bool { return true }) {
		if r.ParentSessionID == s.ID && r.ExecutionMode == coordapi.ModeAsyncCallback {
			n++
		}
		if r.SessionID == s.ID && r.eventless(s) {
			n += len(r.Callbacks) // they may return
		}
	}
	return n
}

// bounded returns callbacks with more of them, whose results say where they are if there is no room.
func bounded(list []callback, more ...callback) []callback {
	list = slices.Clone(list)
	size := 0
	for _, c := range list {
		size += len(c.Text)
	}
	for _, c := range more {
		if size+len(c.Text) > maxResults {
			c.Text = fmt.Sprintf("[cut] GET /sessions/%s/result has it", c.Session)
		}
		size += len(c.Text)
		list = append(list, c)
	}
	return list
}

// eventless reports whether nothing has come from a run yet, so that its agent may not have the prompt.
func (r *run) eventless(s *session) bool { return r.StartedAt == nil || s.Events == r.Events }

// returnCallbacks returns the callbacks of an ended run that its agent has not got. The next run brings them: another one at once may
// fail in the same way. Those that came meanwhile are delivered.
func (t *tx) returnCallbacks(r *run, s *session) {
	var back []callback
	if r.Status != coordapi.RunCompleted && r.eventless(s) {
		for _, c := range r.Callbacks {
			if r.StartedAt != nil {
				c.Tries++
			}
			if c.Tries >= maxTries {
				t.c.log.Warn("a callback was not delivered", "session", s.ID, "child", c.Session, "runs", c.Tries)
				continue
			}
			back = append(back, c)
		}
	}
	r.Callbacks = nil
	fresh := len(s.Callbacks) > 0
	s.Callbacks = bounded(back, s.Callbacks...)
	if fresh && (len(back) == 0 || r.StartedAt != nil) {
		t.deliver(s)
	}
}

// deliver resumes a session with all callbacks that it has, unless it has a run: that delivers them when it ends, however it ends.
// A session that a client has stopped stays stopped.
func (t *tx) deliver(s *session) {
	if len(s.Callbacks) == 0 || s.Stopped || len(t.selectRuns(func(r *run) bool { return r.SessionID == s.ID })) > 0 {
		return
	}
	var b strings.Builder
	for _, c := range s.Callbacks {
		// What a child says is data: it cannot end the element.
		fmt.Fprintf(&b, "<agent-callback session=%q run=%q agent=%q status=%q>\n%s\n</agent-callback>\n",
			html.EscapeString(c.Session), html.EscapeString(c.Run), html.EscapeString(c.Agent), html.EscapeString(string(c.Status)), html.EscapeString(c.Text))
	}
	r := &run{Owner: s.Owner, Callbacks: s.Callbacks, Run: coordapi.Run{
		Type: coordapi.ResumeSession, SessionID: s.ID, AgentName: s.AgentName, ProjectDir: s.ProjectDir,
		ParentSessionID: s.ParentSessionID, ExecutionMode: coordapi.ModeAsyncPoll, Prompt: b.String(),
	}}
	parameters, err := encode(map[string]string{"prompt": r.Prompt})
	if err == nil {
		r.Parameters = parameters
		err = t.demand(r, s, coordapi.Demands{})
	}
	if err != nil {
		t.c.log.Warn("a callback cannot be delivered", "session", s.ID, "error", err)
		return
	}
	s.Callbacks = nil
	t.add(r, s)
}

// deliverAll delivers the callbacks of all sessions that are free.
func (t *tx) deliverAll() {
	for id, s := range t.c.sessions {
		if len(s.Callbacks) > 0 {
			t.deliver(t.session(id))
		}
	}
}
