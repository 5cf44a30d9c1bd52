package coordinator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// eventStream is the media type of server-sent events.
const eventStream = "text/event-stream"

// Route is one operation, below coordapi.Prefix.
type Route struct {
	Method, Path, Summary string
	Media                 string // of an answer that is no JSON
	Query                 []string
	ignored               []string // keys that clients of claude-agent-orchestrator send
	handle                func(http.ResponseWriter, *http.Request, Caller) error
}

// Serve answers a request of a caller. The context of the request ends streams and polls.
func (c *Coordinator) Serve(rt Route, w http.ResponseWriter, r *http.Request, caller Caller) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	err := rt.checkQuery(r)
	if err == nil {
		err = rt.handle(w, r, caller)
	}
	if err != nil {
		c.fail(w, r, err)
	}
}

// fail answers with an error. A client does not get the reason of one that is the coordinator's.
func (c *Coordinator) fail(w http.ResponseWriter, r *http.Request, err error) {
	f, ok := errors.AsType[*failure](err)
	if large, is := errors.AsType[*http.MaxBytesError](err); is {
		f, ok = &failure{status: http.StatusRequestEntityTooLarge, detail: fmt.Sprintf("the body has more than %d bytes", large.Limit)}, true
	}
	if !ok {
		c.log.Error("a request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		f = &failure{status: http.StatusInternalServerError, detail: "the coordinator failed; the server's log says why"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.status)
	_, _ = w.Write(f.body())
}

// Routes returns all operations.
func (c *Coordinator) Routes() []Route {
	const one, runOf = "/sessions/{id}", "/runner/runs/{id}"
	return []Route{
		{Method: "POST", Path: "/runs", Summary: "Ask for a run", handle: c.createRun},
		{Method: "GET", Path: "/runs", Summary: "List runs, the latest first", Query: []string{"session_id"}, handle: c.listRuns},
		{Method: "GET", Path: "/runs/{id}", Summary: "The state of a run", handle: c.oneRun},
		{Method: "POST", Path: "/runs/{id}/stop", Summary: "Stop a run, with its session", handle: c.stopRun},
		{Method: "GET", Path: "/agents", Summary: "List the agents that runs may name", ignored: []string{"tags"}, handle: c.listAgents},

		{Method: "GET", Path: "/sessions", Summary: "List sessions, the latest first", handle: c.listSessions},
		{Method: "GET", Path: one, Summary: "A session", handle: c.ofSession("session", func(s *session) any { return s.Session })},
		{Method: "DELETE", Path: one, Summary: "Remove a session that has ended", handle: c.deleteSession},
		{Method: "GET", Path: one + "/status", Summary: "The state of a session, also of none", handle: c.status},
		{Method: "GET", Path: one + "/result", Summary: "What the agent said last", handle: c.result},
		{Method: "GET", Path: one + "/affinity", Summary: "Where a session can go on", handle: c.ofSession("affinity", func(s *session) any {
			return coordapi.Affinity{Hostname: s.Hostname, ProjectDir: s.ProjectDir, ExecutorProfile: s.ExecutorProfile, ExecutorSessionID: s.ExecutorSessionID}
		})},
		{Method: "GET", Path: one + "/events", Summary: "The events of a session", handle: c.listEvents},
		{Method: "POST", Path: one + "/events", Summary: "Add an event", handle: c.addEvent},
		{Method: "POST", Path: one + "/bind", Summary: "Say which session of an executor it is", handle: c.bindSession},
		{Method: "PATCH", Path: one + "/metadata", Summary: "Change what the executor knows", handle: c.setMetadata},
		{Method: "POST", Path: one + "/stop", Summary: "Stop what a session does", handle: c.stopSession},
		{Method: "GET", Path: "/sse/sessions", Summary: "Follow the changes of sessions", Media: eventStream, Query: []string{"session_id", "include_init"}, ignored: []string{"api_key"}, handle: c.stream},

		{Method: "POST", Path: "/runner/register", Summary: "Register a runner", handle: c.registerRunner},
		{Method: "POST", Path: "/runner/heartbeat", Summary: "Say that a runner lives", handle: c.beat},
		{Method: "GET", Path: "/runner/runs", Summary: "Wait for a run, or for what to stop", Query: []string{"runner_id", "instance", "full"}, handle: c.pollRuns},
		{Method: "POST", Path: runOf + "/started", Summary: "Say that a run begins", handle: c.report((*tx).started)},
		{Method: "POST", Path: runOf + "/completed", Summary: "Report the end of a run", handle: c.report(as(coordapi.RunCompleted))},
		{Method: "POST", Path: runOf + "/failed", Summary: "Report the failure of a run", handle: c.report(as(coordapi.RunFailed))},
		{Method: "POST", Path: runOf + "/stopped", Summary: "Report that a run was stopped", handle: c.report(as(coordapi.RunStopped))},
		{Method: "POST", Path: "/runner/sessions/{id}/status", Summary: "Report the state of a session", handle: c.reportSession},
		{Method: "GET", Path: "/runners", Summary: "List the runners", handle: c.listRunners},
		{Method: "DELETE", Path: "/runners/{id}", Summary: "Remove a runner", Query: []string{"self", "instance"}, handle: c.removeRunner},
	}
}

// read decodes the body of a request. If it is strict, unknown keys are errors.
func read(r *http.Request, to any, strict bool) error {
	data, err := body(r)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		data = []byte("{}")
	}
	if err := coordapi.Decode(data, to, strict); err != nil {
		return failf(http.StatusBadRequest, "%w", err)
	}
	return nil
}

// body reads the body of a request, which must be said to be JSON.
func body(r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil || len(data) == 0 {
		return data, err
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, failf(http.StatusUnsupportedMediaType, "the body must be of the type application/json")
	}
	return data, nil
}

// encode returns a value as JSON, without the escapes for HTML, which would make six bytes of one.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// answer writes an answer.
func answer(w http.ResponseWriter, status int, v any) error {
	data, err := encode(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // the client may have gone, and asks again
	return nil
}

// byClient is why a run has ended that a client stops.
const byClient = "stopped by a client"

var ok = map[string]any{"ok": true}

func (c *Coordinator) createRun(w http.ResponseWriter, r *http.Request, caller Caller) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxRun)
	var in coordapi.NewRun
	if err := read(r, &in, true); err != nil {
		return err
	}
	var made coordapi.Run
	if err := c.change(r.Context(), func(t *tx) error {
		run, err := t.create(caller, in)
		if err == nil {
			made = run.Run
		}
		return err
	}); err != nil {
		return err
	}
	return answer(w, http.StatusCreated, made)
}

func (c *Coordinator) listRuns(w http.ResponseWriter, r *http.Request, caller Caller) error {
	return answer(w, http.StatusOK, map[string]any{"runs": c.visibleRuns(caller, r.URL.Query().Get("session_id"))})
}

func (c *Coordinator) oneRun(w http.ResponseWriter, r *http.Request, caller Caller) error {
	found, err := c.findRun(caller, r.PathValue("id"))
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, found)
}

func (c *Coordinator) stopRun(w http.ResponseWriter, r *http.Request, caller Caller) error {
	found, err := c.findRun(caller, r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := c.change(r.Context(), func(t *tx) error {
		now := t.c.runs[found.ID]
		if now == nil {
			return nil // it was deleted meanwhile
		}
		if !now.Status.Ended() {
			now = t.run(found.ID) // before the stop, which may remove it
			t.stop(t.session(now.SessionID), byClient)
		}
		found = now.Run
		return nil
	}); err != nil {
		return err
	}
	return answer(w, http.StatusOK, map[string]any{"ok": true, "run_id": found.ID, "session_id": found.SessionID, "status": found.Status})
}

func (c *Coordinator) listAgents(w http.ResponseWriter, _ *http.Request, _ Caller) error {
	return answer(w, http.StatusOK, map[string]any{"agents": c.allAgents()})
}

func (c *Coordinator) listSessions(w http.ResponseWriter, _ *http.Request, caller Caller) error {
	return answer(w, http.StatusOK, map[string]any{"sessions": c.visible(caller)})
}

// ofSession answers with something of a session.
func (c *Coordinator) ofSession(key string, get func(*session) any) func(http.ResponseWriter, *http.Request, Caller) error {
	return func(w http.ResponseWriter, r *http.Request, caller Caller) error {
		s, err := c.find(caller, r.PathValue("id"))
		if err != nil {
			return err
		}
		return answer(w, http.StatusOK, map[string]any{key: get(s)})
	}
}

func (c *Coordinator) status(w http.ResponseWriter, r *http.Request, caller Caller) error {
	status := coordapi.NotExistent
	if s, err := c.find(caller, r.PathValue("id")); err == nil {
		status = s.Status
	}
	return answer(w, http.StatusOK, map[string]any{"status": status})
}

func (c *Coordinator) result(w http.ResponseWriter, r *http.Request, caller Caller) error {
	s, err := c.find(caller, r.PathValue("id"))
	if err != nil {
		return err
	}
	switch {
	case s.Status == coordapi.SessionFailed && s.Error != "":
		return failf(http.StatusBadRequest, "the session is failed: %s; /events has what it said", s.Error)
	case s.Status != coordapi.SessionFinished && s.Status != coordapi.SessionIdle:
		return failf(http.StatusBadRequest, "the session is %s, and has a result when it is finished or idle", s.Status)
	}
	var said coordapi.Result
	if s.Result != nil {
		said = *s.Result
	}
	return answer(w, http.StatusOK, map[string]any{"result": said.Text, "result_text": said.Text, "result_data": said.Data})
}

// listEvents writes the events one after the other: there may be many.
func (c *Coordinator) listEvents(w http.ResponseWriter, r *http.Request, caller Caller) error {
	s, err := c.find(caller, r.PathValue("id"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	q, separator := query{session: s.ID, kind: kindEvent}, `{"events":[`
	for {
		list, more, err := c.db.next(r.Context(), &q)
		if err != nil {
			return err
		}
		for _, e := range list {
			if _, err := fmt.Fprintf(w, "%s%s", separator, e.data); err != nil {
				return nil //nolint:nilerr // the client has gone
			}
			separator = ",\n"
		}
		if !more {
			break
		}
	}
	if separator != ",\n" {
		_, _ = io.WriteString(w, separator)
	}
	_, _ = io.WriteString(w, "]}\n")
	return nil
}

func (c *Coordinator) addEvent(w http.ResponseWriter, r *http.Request, caller Caller) error {
	data, err := body(r)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		return failf(http.StatusBadRequest, "Request body required")
	}
	if err := c.change(r.Context(), func(t *tx) error { return t.event(caller, r.PathValue("id"), data) }); err != nil {
		return err
	}
	return answer(w, http.StatusCreated, ok)
}

func (c *Coordinator) bindSession(w http.ResponseWriter, r *http.Request, caller Caller) error {
	var in coordapi.Bind
	return c.changeSession(w, r, &in, func(t *tx) (*session, error) { return t.bind(caller, r.PathValue("id"), in) })
}

func (c *Coordinator) setMetadata(w http.ResponseWriter, r *http.Request, caller Caller) error {
	var in coordapi.Metadata
	return c.changeSession(w, r, &in, func(t *tx) (*session, error) { return t.metadata(caller, r.PathValue("id"), in) })
}

// changeSession changes a session by a body, and answers with it.
func (c *Coordinator) changeSession(w http.ResponseWriter, r *http.Request, in any, do func(*tx) (*session, error)) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxKept)
	if err := read(r, in, false); err != nil {
		return err
	}
	var now coordapi.Session
	if err := c.change(r.Context(), func(t *tx) error {
		s, err := do(t)
		if err == nil {
			now = s.Session
		}
		return err
	}); err != nil {
		return err
	}
	return answer(w, http.StatusOK, map[string]any{"ok": true, "session": now})
}

func (c *Coordinator) stopSession(w http.ResponseWriter, r *http.Request, caller Caller) error {
	id := r.PathValue("id")
	var status coordapi.SessionStatus
	if err := c.change(r.Context(), func(t *tx) error {
		if _, err := t.seen(caller, id); err != nil {
			return err
		}
		s := t.session(id)
		t.stop(s, byClient)
		status = s.Status
		return nil
	}); err != nil {
		return err
	}
	return answer(w, http.StatusOK, map[string]any{"ok": true, "session_id": id, "status": status})
}

func (c *Coordinator) deleteSession(w http.ResponseWriter, r *http.Request, caller Caller) error {
	id := r.PathValue("id")
	if err := c.change(r.Context(), func(t *tx) error { return t.delete(caller, id) }); err != nil {
		return err
	}
	return answer(w, http.StatusOK, map[string]any{"ok": true, "session_id": id, "deleted": true})
}

func (c *Coordinator) registerRunner(w http.ResponseWriter, r *http.Request, caller Caller) error {
	var in coordapi.Registration
	if err := read(r, &in, false); err != nil {
		return err
	}
	var id string
	if err := c.change(r.Context(), func(t *tx) error {
		made, err := t.register(caller, in)
		if err == nil {
			id = made.ID
		}
		return err
	}); err != nil {
		return err
	}
	return answer(w, http.StatusOK, coordapi.Registered{
		RunnerID: id, PollEndpoint: "/runner/runs",
		PollTimeoutSeconds: int(pollTimeout / time.Second), HeartbeatIntervalSeconds: int(heartbeatEvery / time.Second),
	})
}

func (c *Coordinator) beat(w http.ResponseWriter, r *http.Request, caller Caller) error {
	var in coordapi.Report
	if err := read(r, &in, false); err != nil {
		return err
	}
	if err := c.change(r.Context(), func(t *tx) error { return t.heartbeat(caller, in) }); err != nil {
		return err
	}
	return answer(w, http.StatusOK, ok)
}

// pollRuns waits until there is something to do. What it answers is stored as sent, and comes again unless the runner acts on it.
func (c *Coordinator) pollRuns(w http.ResponseWriter, r *http.Request, caller Caller) error {
	q := r.URL.Query()
	end, again := time.NewTimer(pollTimeout), time.NewTicker(sendAgain)
	defer end.Stop()
	defer again.Stop()
	for {
		changed := c.waitWork()
		var next coordapi.Polled
		if err := c.change(r.Context(), func(t *tx) (err error) {
			next, err = t.poll(caller, q.Get("runner_id"), q.Get("instance"), q.Get("full") == "true")
			return err
		}); err != nil {
			return err
		}
		if next.Run != nil || len(next.StopSessions) > 0 || next.Deregistered {
			return answer(w, http.StatusOK, next)
		}
		if !until(r.Context(), changed, end.C, again.C) {
			w.WriteHeader(http.StatusNoContent)
			return nil
		}
	}
}

// report answers a report of a runner.
func (c *Coordinator) report(do func(*tx, Caller, string, coordapi.Report) (*run, error)) func(http.ResponseWriter, *http.Request, Caller) error {
	return func(w http.ResponseWriter, r *http.Request, caller Caller) error {
		var in coordapi.Report
		if err := read(r, &in, false); err != nil {
			return err
		}
		var status coordapi.RunStatus
		if err := c.change(r.Context(), func(t *tx) error {
			now, err := do(t, caller, r.PathValue("id"), in)
			if err == nil {
				status = now.Status
			}
			return err
		}); err != nil {
			return err
		}
		return answer(w, http.StatusOK, map[string]any{"ok": true, "status": status})
	}
}

// as reports the end of a run.
func as(status coordapi.RunStatus) func(*tx, Caller, string, coordapi.Report) (*run, error) {
	return func(t *tx, caller Caller, id string, in coordapi.Report) (*run, error) {
		return t.ended(caller, id, status, in)
	}
}

func (c *Coordinator) reportSession(w http.ResponseWriter, r *http.Request, caller Caller) error {
	var in coordapi.Report
	if err := read(r, &in, false); err != nil {
		return err
	}
	if err := c.change(r.Context(), func(t *tx) error { return t.sessionStatus(caller, r.PathValue("id"), in) }); err != nil {
		return err
	}
	return answer(w, http.StatusOK, ok)
}

func (c *Coordinator) listRunners(w http.ResponseWriter, _ *http.Request, caller Caller) error {
	return answer(w, http.StatusOK, map[string]any{"runners": c.visibleRunners(caller)})
}

func (c *Coordinator) removeRunner(w http.ResponseWriter, r *http.Request, caller Caller) error {
	q := r.URL.Query()
	if err := c.change(r.Context(), func(t *tx) error {
		return t.remove(caller, r.PathValue("id"), q.Get("self") == "true", q.Get("instance"))
	}); err != nil {
		return err
	}
	return answer(w, http.StatusOK, ok)
}
