package coordinator

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// Caller is the program or person behind a request.
type Caller struct {
	// Name owns what the caller asks for.
	Name string
	// Admin sees everything.
	Admin bool
}

// sees reports whether a session exists for a caller: its own, and those that its runners have.
func (caller Caller) sees(s *session) bool {
	return caller.Admin || s.Owner == caller.Name || s.Runner != "" && s.RunnerOwner == caller.Name
}

// enter sets the status, and why a session has failed.
func (s *session) enter(status coordapi.SessionStatus, reason string) {
	s.Status, s.Error = status, ""
	if status == coordapi.SessionFailed {
		s.Error = coordapi.Cut(reason, maxSessionError)
	}
}

// seen returns a session that a caller sees. It must not be modified.
func (t *tx) seen(caller Caller, id string) (*session, error) {
	s := t.c.sessions[id]
	if changed, ok := t.sessions[id]; ok {
		s = changed
	}
	if s == nil || !caller.sees(s) {
		return nil, noSession(id)
	}
	return s, nil
}

// bind notes which session of an executor a session is.
func (t *tx) bind(caller Caller, id string, in coordapi.Bind) (*session, error) {
	if _, err := t.seen(caller, id); err != nil {
		return nil, err
	}
	if in.ExecutorSessionID == "" || in.Hostname == "" || in.ExecutorProfile == "" {
		return nil, failf(http.StatusUnprocessableEntity, "executor_session_id, hostname and executor_profile are needed")
	}
	s := t.touch(id)
	s.ExecutorSessionID, s.Hostname, s.ExecutorProfile = in.ExecutorSessionID, in.Hostname, in.ExecutorProfile
	s.ProjectDir = cmp.Or(in.ProjectDir, s.ProjectDir)
	return s, nil
}

// metadata changes what an executor knows of its session.
func (t *tx) metadata(caller Caller, id string, in coordapi.Metadata) (*session, error) {
	if _, err := t.seen(caller, id); err != nil {
		return nil, err
	}
	s := t.touch(id)
	if in.LastResumedAt != nil {
		s.LastResumedAt = in.LastResumedAt
	}
	s.ExecutorSessionID = cmp.Or(in.ExecutorSessionID, s.ExecutorSessionID)
	s.ProjectDir = cmp.Or(in.ProjectDir, s.ProjectDir)
	return s, nil
}

// touch returns a session in which something has happened.
func (t *tx) touch(id string) *session {
	t.lives(id)
	s := t.session(id)
	s.LastActivity = t.now
	return s
}

// lives notes that something has happened in a session, so that its run counts as alive.
func (t *tx) lives(id string) {
	for _, r := range t.selectRuns(func(r *run) bool {
		return r.SessionID == id && (r.Status == coordapi.RunRunning || r.Status == coordapi.RunStopping)
	}) {
		t.heard(r)
	}
}

// heard notes a sign of life of a run, of this change or before it. It is not stored, and stays if the change fails.
func (t *tx) heard(r *run) { r.Activity = t.now }

// event adds an event of an executor. One that was sent before, by its event_id, changes nothing.
func (t *tx) event(caller Caller, id string, body []byte) error {
	s, err := t.seen(caller, id)
	if err != nil {
		return err
	}
	var in struct {
		Type       string          `json:"event_type"`
		SessionID  string          `json:"session_id"`
		ID         string          `json:"event_id"`
		ResultText string          `json:"result_text"`
		ResultData json.RawMessage `json:"result_data"`
	}
	if err := coordapi.Unmarshal(body, &in); err != nil {
		return failf(http.StatusBadRequest, "%w", err)
	}
	switch {
	case in.Type == "":
		return failf(http.StatusUnprocessableEntity, "event_type is needed")
	case in.SessionID != "" && in.SessionID != id:
		return failf(http.StatusBadRequest, "session_id: the event is of %q, and the address of %q", in.SessionID, id)
	}
	if in.ID != "" {
		if has, err := t.c.db.has(t.ctx, id, in.ID); has || err != nil {
			return err
		}
	}
	t.quiet = true
	t.lives(id)
	if in.Type == coordapi.EventResult {
		s = t.touch(id)
		s.Result = &coordapi.Result{Text: in.ResultText, Data: in.ResultData}
	}
	if s.Events >= maxEvents {
		if in.Type == coordapi.EventResult {
			return nil // runs go on to have results, but not in the log
		}
		return failf(http.StatusRequestEntityTooLarge, "the session has %d events", s.Events)
	}
	t.entry(s, kindEvent, in.ID, json.RawMessage(body))
	return nil
}

// delete removes a session that has ended, with its runs and events.
func (t *tx) delete(caller Caller, id string) error {
	if _, err := t.seen(caller, id); err != nil {
		return err
	}
	s := t.session(id)
	active := t.selectRuns(func(r *run) bool { return r.SessionID == id })
	if len(active) > 0 || s.Status == coordapi.SessionIdle || s.Stop != "" {
		return failf(http.StatusConflict, "the session %s is %s; stop it first: POST /sessions/%[1]s/stop", id, s.Status)
	}
	t.erase(s)
	return nil
}

// erase removes a session with its runs and events.
func (t *tx) erase(s *session) {
	for _, r := range t.among(t.c.runs, func(r *run) bool { return r.SessionID == s.ID }) {
		t.runs[r.ID] = nil
	}
	t.sessions[s.ID] = nil
	t.entry(s, kindDeleted, "", map[string]any{"session_id": s.ID})
}

// eraseHooks removes the sessions of hooks that have ended, when their last reports have come.
func (t *tx) eraseHooks() {
	for id, s := range t.c.sessions {
		if !s.Internal || t.now.Sub(s.LastActivity) <= goneAfter {
			continue
		}
		if s = t.session(id); len(t.selectRuns(func(r *run) bool { return r.SessionID == id })) == 0 {
			t.erase(s)
		}
	}
}

// visible returns what a caller sees, the latest first.
func (c *Coordinator) visible(caller Caller) []coordapi.Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []coordapi.Session{}
	for _, s := range c.sessions {
		if caller.sees(s) {
			list = append(list, s.Session)
		}
	}
	slices.SortFunc(list, func(a, b coordapi.Session) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return list
}

// find returns a session that a caller sees. It must not be modified.
func (c *Coordinator) find(caller Caller, id string) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[id]
	if s == nil || !caller.sees(s) {
		return nil, noSession(id)
	}
	return s, nil
}

// findRun returns a run of a session that a caller sees.
func (c *Coordinator) findRun(caller Caller, id string) (coordapi.Run, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.runs[id]
	if r == nil || !caller.sees(c.sessions[r.SessionID]) {
		return coordapi.Run{}, failf(http.StatusNotFound, "Run %q not found", id)
	}
	return r.Run, nil
}

// visibleRuns returns the runs that a caller sees, the latest first.
func (c *Coordinator) visibleRuns(caller Caller, sessionID string) []coordapi.Run {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*run
	for _, r := range c.runs {
		if (sessionID == "" || r.SessionID == sessionID) && caller.sees(c.sessions[r.SessionID]) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *run) int { return int(b.N) - int(a.N) }) //nolint:gosec // far from the limits
	list := []coordapi.Run{}
	for _, r := range found {
		list = append(list, brief(r.Run))
	}
	return list
}
