package coordinator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// create checks what a client asks for, and adds the run.
func (t *tx) create(caller Caller, in coordapi.NewRun) (*run, error) {
	r := &run{Run: coordapi.Run{
		Type: in.Type, AgentName: in.AgentName, ProjectDir: in.ProjectDir, ParentSessionID: in.ParentSessionID,
		ExecutionMode: cmp.Or(in.ExecutionMode, coordapi.ModeSync), Scope: in.Scope,
	}, Owner: caller.Name}
	var err error
	if r.Parameters, r.Prompt, err = parametersOf(in); err != nil {
		return nil, err
	}
	switch r.ExecutionMode {
	case coordapi.ModeSync, coordapi.ModeAsyncPoll, coordapi.ModeAsyncCallback:
	default:
		return nil, failf(http.StatusBadRequest, "execution_mode: there is no mode %q; use sync, async_poll or async_callback", r.ExecutionMode)
	}
	kept, err := encode(coordapi.NewRun{ProjectDir: in.ProjectDir, AdditionalDemands: in.AdditionalDemands, Scope: in.Scope})
	if err != nil {
		return nil, err
	}
	if len(kept) > maxKept {
		return nil, failf(http.StatusBadRequest, "scope, project_dir and additional_demands: they have %d bytes, and %d are the most; keep a key of yours in scope", len(kept), maxKept)
	}
	var s *session
	switch in.Type {
	case coordapi.StartSession:
		if in.SessionID != "" {
			return nil, failf(http.StatusBadRequest, "session_id: a new session gets its ID here; leave it out, or use the type resume_session")
		}
	case coordapi.ResumeSession:
		if in.SessionID == "" {
			return nil, failf(http.StatusBadRequest, "session_id required: resume_session goes on with that session")
		}
		if s, err = t.seen(caller, in.SessionID); err != nil {
			return nil, err
		}
		if in.AgentName != "" && in.AgentName != s.AgentName {
			return nil, failf(http.StatusBadRequest, "agent_name: the session has the agent %q; leave it out", s.AgentName)
		}
		r.SessionID, r.AgentName, r.ExecutorSessionID = s.ID, s.AgentName, s.ExecutorSessionID
		r.ProjectDir, r.ParentSessionID = cmp.Or(r.ProjectDir, s.ProjectDir), cmp.Or(r.ParentSessionID, s.ParentSessionID)
	default:
		return nil, failf(http.StatusBadRequest, "type: there is no type %q; use start_session or resume_session", in.Type)
	}
	calls := r.ExecutionMode == coordapi.ModeAsyncCallback
	if calls && r.ParentSessionID == "" {
		return nil, failf(http.StatusBadRequest, "execution_mode: async_callback resumes the parent; give parent_session_id")
	}
	if calls || in.ParentSessionID != "" { // that of an earlier run may have been deleted
		parent, err := t.seen(caller, r.ParentSessionID)
		if err != nil {
			return nil, err
		}
		if calls && t.waiting(parent) >= maxCallbacks {
			return nil, failf(http.StatusTooManyRequests,
				"execution_mode: %d callbacks wait for the session %s, with those of children that have not ended; use async_poll, or resume it if it is stopped", maxCallbacks, parent.ID)
		}
	}
	if err := t.room(caller, s == nil); err != nil {
		return nil, err
	}
	if err := t.demand(r, s, in.AdditionalDemands); err != nil {
		return nil, err
	}
	t.add(r, s)
	t.session(r.SessionID).Stopped = false
	return r, nil
}

// parametersOf returns the parameters of a run, and the one that is the prompt.
func parametersOf(in coordapi.NewRun) (json.RawMessage, string, error) {
	all := map[string]json.RawMessage{}
	if len(in.Parameters) > 0 && string(in.Parameters) != "null" {
		if err := json.Unmarshal(in.Parameters, &all); err != nil {
			return nil, "", failf(http.StatusBadRequest, "parameters: %v; give an object", err)
		}
	}
	if in.Prompt != "" {
		if all["prompt"] != nil {
			return nil, "", failf(http.StatusBadRequest, "prompt: parameters.prompt is there, too; give one of them")
		}
		text, err := encode(in.Prompt)
		if err != nil {
			return nil, "", err
		}
		all["prompt"] = text
	}
	var prompt string
	_ = json.Unmarshal(all["prompt"], &prompt) // a prompt that is no text is for the schema
	data, err := encode(all)
	return data, prompt, err
}

// room refuses more than the limits.
func (t *tx) room(caller Caller, begins bool) error {
	if begins && len(t.c.sessions) >= maxSessions {
		return failf(http.StatusTooManyRequests, "there are %d sessions; delete some", maxSessions)
	}
	if caller.Admin {
		return nil
	}
	if n := t.owned(caller); begins && n >= maxOwned {
		return failf(http.StatusTooManyRequests, "%s has %d sessions; delete some", caller.Name, n)
	}
	if n := len(t.selectRuns(func(r *run) bool { return r.Owner == caller.Name })); n >= maxActive {
		return failf(http.StatusTooManyRequests, "%s has %d runs that have not ended; wait, or stop some", caller.Name, n)
	}
	return nil
}

// owned returns how many sessions a caller has, but for those of hooks.
func (t *tx) owned(caller Caller) (n int) {
	for _, s := range t.c.sessions {
		if s.Owner == caller.Name && !s.Internal {
			n++
		}
	}
	return n
}

// demand finds the agent of a run, checks the parameters, and sets the demands. s is the session that it resumes, or nil.
func (t *tx) demand(r *run, s *session, more coordapi.Demands) error {
	var demands coordapi.Demands
	agent, err := t.agent(r.AgentName)
	if err != nil {
		return err
	}
	if agent != nil {
		r.Blueprint, demands = &agent.Agent, agent.demands
	}
	if err := r.checkParameters(r.Parameters); err != nil {
		return err
	}
	if s != nil {
		if demands, err = merge(demands, s.demands()); err != nil {
			return err
		}
	}
	r.Demands, err = merge(demands, more)
	return err
}

// add adds a checked run, with its session if s is nil.
func (t *tx) add(r *run, s *session) {
	t.c.last++ // a number of a change that fails stays unused
	r.ID, r.N, r.Status, r.CreatedAt, r.Activity = newID("run_"), t.c.last, coordapi.RunPending, t.now, t.now
	if s == nil {
		s = &session{Internal: r.Internal, Tags: r.Demands.Tags, Session: coordapi.Session{
			ID: newID("ses_"), Status: coordapi.SessionPending, CreatedAt: t.now, AgentName: r.AgentName,
			ParentSessionID: r.ParentSessionID, ProjectDir: r.ProjectDir, Owner: r.Owner,
		}}
		t.sessions[s.ID] = s
	} else {
		s = t.session(s.ID)
	}
	s.LastActivity = t.now
	r.SessionID = s.ID
	t.runs[r.ID] = r
	t.wait(r, matchWithin)
	t.startHook(r)
}

// wait sets the time when a pending run fails.
func (t *tx) wait(r *run, d time.Duration) {
	at := t.now.Add(d)
	r.TimeoutAt = &at
}

// busy reports whether a session has a run other than r that a runner has.
func (t *tx) busy(r *run) bool {
	return len(t.selectRuns(func(o *run) bool {
		return o.ID != r.ID && o.SessionID == r.SessionID && (o.Status != coordapi.RunPending || o.N < r.N)
	})) > 0
}

// end ends a run: its session gets a new state, and runs that wait for it go on.
func (t *tx) end(r *run, status coordapi.RunStatus, session coordapi.SessionStatus, reason string) {
	if r.Status.Ended() {
		return
	}
	started := r.StartedAt != nil
	reason = coordapi.Cut(reason, maxResult)
	r.Status, r.Error, r.CompletedAt, r.TimeoutAt = status, reason, &t.now, nil
	s := t.session(r.SessionID)
	s.LastActivity = t.now
	// The end of a run in the queue says nothing of the run, or of the session to stop, that a runner has.
	queued := len(t.selectRuns(func(o *run) bool { return o.SessionID == s.ID && o.RunnerID != "" })) > 0
	if !queued && (started || s.Stop == "") {
		if started || r.Type == coordapi.StartSession || s.Status == coordapi.SessionStopping {
			s.enter(session, reason)
		}
		s.Stop = ""
	}
	if status == coordapi.RunFailed {
		t.entry(s, kindRunFailed, "", map[string]any{"run_id": r.ID, "session_id": s.ID, "error": reason})
	}
	t.hookEnded(r, s)
	t.finishHook(r)
	t.callBack(r, s)
	r.Run = brief(r.Run)
	for _, next := range t.selectRuns(func(o *run) bool { return o.SessionID == s.ID && o.Status == coordapi.RunPending && o.Hook == "" }) {
		t.wait(t.run(next.ID), matchWithin)
	}
	t.returnCallbacks(r, s)
	ended := t.among(t.c.runs, func(o *run) bool { return o.SessionID == s.ID && o.Status.Ended() })
	for _, o := range ended[:max(0, len(ended)-keptRuns)] {
		t.runs[o.ID] = nil
	}
}

// brief returns a run without what its runner needs, which may be large.
func brief(r coordapi.Run) coordapi.Run {
	r.Prompt, r.Parameters, r.Blueprint = "", nil, nil
	return r
}

// stop stops what a session does: runs that have not started end at once, and the runner gets the stop until it reports the end.
// Callbacks wait for the next run that a client asks for. A run that has started says why it was stopped.
func (t *tx) stop(s *session, reason string) {
	s.Stopped = true
	for _, r := range t.selectRuns(func(r *run) bool { return r.SessionID == s.ID }) {
		r = t.run(r.ID)
		if r.Status == coordapi.RunPending || r.Status == coordapi.RunClaimed {
			hook := t.run(r.Hook)
			t.end(r, coordapi.RunStopped, coordapi.SessionStopped, "stopped before it started")
			if hook != nil {
				t.stop(t.session(hook.SessionID), reason)
			}
			continue
		}
		r.Status, r.Error, r.Activity, r.sent = coordapi.RunStopping, reason, t.now, time.Time{}
		s.Status = coordapi.SessionStopping
	}
	if s.Status == coordapi.SessionIdle {
		s.Status, s.Stop, s.stopSent = coordapi.SessionStopping, s.Runner, time.Time{}
	}
}

// expireRuns ends or releases the runs whose time is over.
func (t *tx) expireRuns() {
	for _, r := range t.selectRuns(func(*run) bool { return true }) {
		if now, changed := t.runs[r.ID]; changed { // by an earlier one
			r = now
		}
		if r == nil {
			continue
		}
		silent := t.now.Sub(r.Activity)
		switch r.Status {
		case coordapi.RunPending:
			t.expirePending(r)
		case coordapi.RunClaimed:
			if t.now.Sub(*r.ClaimedAt) > startWithin {
				t.release(t.run(r.ID))
			}
		case coordapi.RunRunning:
			if silent > runningSilence {
				t.end(t.run(r.ID), coordapi.RunFailed, coordapi.SessionFailed, "its runner has not mentioned it for "+runningSilence.String())
			}
		case coordapi.RunStopping:
			if silent > stoppingSilence {
				t.end(t.run(r.ID), coordapi.RunStopped, coordapi.SessionStopped, "its runner has not confirmed the stop for "+stoppingSilence.String())
			}
		case coordapi.RunCompleted, coordapi.RunFailed, coordapi.RunStopped:
		}
	}
}

// expirePending fails a run that no runner can take. It waits on for one that can, and is busy or holds its poll.
func (t *tx) expirePending(r *run) {
	if r.TimeoutAt == nil || t.now.Before(*r.TimeoutAt) {
		return
	}
	switch {
	case r.Hook != "":
		t.hookLate(t.run(r.ID))
	case t.busy(r) || slices.ContainsFunc(t.allRunners(), func(o *runner) bool { return o.Status == online && t.mayRun(r, o) }):
		t.wait(t.run(r.ID), matchWithin)
	default:
		text, err := json.Marshal(r.Demands)
		if err != nil {
			text = nil
		}
		reason := "no runner has met its demands for " + matchWithin.String() + ": " + string(text)
		if s := t.c.sessions[r.SessionID]; s.bound() {
			reason += "; the runner " + s.Runner + " has its session: start that again"
		}
		t.end(t.run(r.ID), coordapi.RunFailed, coordapi.SessionFailed, reason)
	}
}

// release makes a claimed run pending again, unless that has happened too often.
func (t *tx) release(r *run) {
	if r.Releases++; r.Releases >= maxReleases {
		t.end(r, coordapi.RunFailed, coordapi.SessionFailed, fmt.Sprintf("runners have claimed it %d times, and none has started it; their logs may say why", r.Releases))
		return
	}
	r.Status, r.RunnerID, r.ClaimedAt = coordapi.RunPending, "", nil
	t.wait(r, matchWithin)
}
