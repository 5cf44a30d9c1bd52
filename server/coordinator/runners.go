package coordinator

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
)

// The states of a runner.
const (
	online = "online"
	stale  = "stale" // was not heard of for staleAfter; the next sign of life makes it online
	// deregistered: an admin has removed it, and it does not know yet.
	deregistered = "deregistered"
)

// runnerID returns the ID of the runner with a host, a folder and a profile. There can be one.
func runnerID(r coordapi.Registration) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{r.Hostname, r.ProjectDir, r.ExecutorProfile}, "\x00")))
	return "lnch_" + hex.EncodeToString(sum[:])[:12]
}

// register adds a runner, or brings one back.
func (t *tx) register(caller Caller, in coordapi.Registration) (*runner, error) {
	if in.Hostname == "" || in.ExecutorProfile == "" {
		return nil, failf(http.StatusBadRequest, "a runner needs hostname and executor_profile")
	}
	id := runnerID(in)
	old := t.c.runners[id]
	again := old != nil && in.Instance != "" && in.Instance == old.Instance && old.Owner == caller.Name
	switch {
	case old == nil && len(t.c.runners) >= maxRunners:
		return nil, failf(http.StatusTooManyRequests, "there are %d runners; remove some", maxRunners)
	case again && old.Status == deregistered:
		return nil, removed(id)
	case old != nil && !again && old.Status == online:
		return nil, named(http.StatusConflict, "duplicate_runner",
			"the runner %s is online: host %s, project_dir %q, profile %s; end it first. If it was killed, its place is free at %s",
			id, in.Hostname, in.ProjectDir, in.ExecutorProfile, t.c.staleAt(old).Format(time.RFC3339))
	}
	for i, a := range in.Agents {
		if err := checkAgent(a); err != nil {
			return nil, failf(http.StatusBadRequest, "agents[%d]: %w", i, err)
		}
		if slices.ContainsFunc(in.Agents[:i], func(b coordapi.Agent) bool { return a.Name == b.Name }) {
			return nil, named(http.StatusConflict, "agent_name_collision", "agents[%d]: another one has the name %q, too; use another name", i, a.Name)
		}
		if other := t.otherAgent(id, a.Name); other != "" {
			return nil, named(http.StatusConflict, "agent_name_collision", "%s has an agent %q; use another name", other, a.Name)
		}
	}
	if old != nil && !again {
		t.abandon(id, "its runner was started again")
	}
	r := &runner{Owner: caller.Name, stored: t.now, Runner: coordapi.Runner{ID: id, Registration: in, Status: online, RegisteredAt: t.now, LastHeartbeat: t.now}}
	t.runners[id] = r
	t.deliverAll() // a parent may have waited for this runner
	return r, nil
}

func removed(id string) error {
	return named(http.StatusConflict, "runner_removed", "an admin has removed the runner %s; end it, and start it again if it is to run", id)
}

// abandon ends what a runner had: runs that it did not start become pending again, and the others fail.
func (t *tx) abandon(id, reason string) {
	for _, r := range t.selectRuns(func(r *run) bool { return r.RunnerID == id }) {
		switch r = t.run(r.ID); r.Status {
		case coordapi.RunClaimed:
			t.release(r)
		case coordapi.RunStopping:
			t.end(r, coordapi.RunStopped, coordapi.SessionStopped, reason)
		default:
			t.end(r, coordapi.RunFailed, coordapi.SessionFailed, reason)
		}
	}
	for sid, s := range t.c.sessions {
		if s.Stop == id || s.Runner == id && s.Status == coordapi.SessionIdle {
			s = t.session(sid)
			s.Stop, s.Status = "", coordapi.SessionStopped
		}
	}
}

// alive returns the runner of a caller and notes that it lives, mostly in memory: each change writes the registration with its agents.
func (t *tx) alive(caller Caller, id, instance string) (*runner, error) {
	r := t.c.runners[id]
	switch {
	case r == nil || r.Owner != caller.Name && !caller.Admin:
		return nil, failf(http.StatusUnauthorized, "Runner %q is not registered; register again", id)
	case isOther(r, instance):
		return nil, named(http.StatusConflict, "duplicate_runner", "another program has registered as the runner %s", id)
	}
	r.LastHeartbeat = t.now
	if r.Status != deregistered && (r.Status != online || t.now.Sub(r.stored) >= heartbeatEvery) {
		r = t.runner(id)
		r.Status, r.stored = online, t.now
	}
	return r, nil
}

// isOther reports whether another program has registered as the runner since. A program without an instance may be the same one.
func isOther(r *runner, instance string) bool {
	return instance != "" && r.Instance != "" && instance != r.Instance
}

// poll returns what a runner is to do; an empty answer is nothing. full says that it takes no run now.
func (t *tx) poll(caller Caller, id, instance string, full bool) (answer coordapi.Polled, err error) {
	t.quiet = true
	r, err := t.alive(caller, id, instance)
	if err != nil {
		return answer, err
	}
	if r.Status == deregistered {
		return coordapi.Polled{Deregistered: true}, nil
	}
	for _, o := range t.selectRuns(func(o *run) bool {
		return o.Status == coordapi.RunStopping && o.RunnerID == id && t.now.Sub(o.sent) >= sendAgain
	}) {
		o.sent = t.now // in memory only
		answer.StopSessions = append(answer.StopSessions, o.SessionID)
	}
	for sid, s := range t.c.sessions {
		if s.Stop == id && t.now.Sub(s.stopSent) >= sendAgain {
			t.session(sid).stopSent = t.now
			answer.StopSessions = append(answer.StopSessions, sid)
		}
	}
	slices.Sort(answer.StopSessions)
	answer.StopSessions = slices.Compact(answer.StopSessions) // an earlier version stored the stop of a run with its session, too
	if len(answer.StopSessions) > 0 || full {
		return answer, nil
	}
	next := t.selectRuns(func(o *run) bool { return t.fits(o, r) })
	if len(next) == 0 {
		return answer, nil
	}
	claimed := t.run(next[0].ID)
	if claimed.Status == coordapi.RunPending {
		claimed.Status, claimed.RunnerID, claimed.ClaimedAt, claimed.TimeoutAt = coordapi.RunClaimed, id, &t.now, nil
		claimed.ExecutorSessionID = t.c.sessions[claimed.SessionID].ExecutorSessionID
	}
	claimed.sent = t.now
	copied := claimed.Run
	answer.Run = &copied
	return answer, nil
}

// fits reports whether a run is to be handed to a runner: one that waits for it, or one that the runner has claimed and may not have
// got.
func (t *tx) fits(o *run, r *runner) bool {
	switch o.Status {
	case coordapi.RunClaimed:
		return o.RunnerID == r.ID && t.now.Sub(o.sent) >= sendAgain
	case coordapi.RunPending:
		return o.Hook == "" && t.mayRun(o, r) && !t.busy(o)
	default:
		return false
	}
}

// reported returns a run that a runner reports on. The run must be the runner's.
func (t *tx) reported(caller Caller, id string, in coordapi.Report) (*run, error) {
	if _, err := t.alive(caller, in.RunnerID, in.Instance); err != nil {
		return nil, err
	}
	r := t.run(id)
	if r == nil {
		return nil, failf(http.StatusNotFound, "Run %q not found", id)
	}
	if r.RunnerID != in.RunnerID {
		now := "was handed to another runner"
		if r.RunnerID == "" {
			now = "waits for a runner again"
		}
		return nil, named(http.StatusConflict, "not_your_run", "the run %s %s, because %s did not say in time that it has started; do not run it unless a poll hands it out again", id, now, in.RunnerID)
	}
	r.Activity = t.now
	return r, nil
}

// started notes that a runner runs a run. Only then may it.
func (t *tx) started(caller Caller, id string, in coordapi.Report) (*run, error) {
	r, err := t.reported(caller, id, in)
	if err != nil {
		return nil, err
	}
	if r.Status.Ended() {
		return nil, named(http.StatusConflict, "run_ended", "the run %s has ended: %s; do not run it", id, r.Status)
	}
	if r.StartedAt != nil {
		return r, nil
	}
	r.StartedAt = &t.now
	s := t.session(r.SessionID)
	r.Events, s.Result = s.Events, nil // that of an earlier run
	at := t.c.runners[in.RunnerID]
	s.LastActivity, s.Runner, s.RunnerOwner, s.RunnerDir = t.now, at.ID, at.Owner, at.ProjectDir
	if r.Type == coordapi.ResumeSession {
		s.LastResumedAt = &t.now
	}
	if r.Status == coordapi.RunClaimed {
		r.Status = coordapi.RunRunning
		s.enter(coordapi.SessionRunning, "")
		s.Stop = "" // of before the run; the executor runs again
	}
	return r, nil
}

// ended notes the end of a run. A report that comes again changes nothing.
func (t *tx) ended(caller Caller, id string, status coordapi.RunStatus, in coordapi.Report) (*run, error) {
	r, err := t.reported(caller, id, in)
	if err != nil {
		return nil, err
	}
	session, reason := coordapi.SessionFailed, in.Error
	switch status {
	case coordapi.RunCompleted:
		session = cmp.Or(in.SessionStatus, coordapi.SessionFinished)
		if session != coordapi.SessionFinished && session != coordapi.SessionIdle {
			return nil, failf(http.StatusBadRequest, "session_status: %q is none after a run; use finished or idle", session)
		}
	case coordapi.RunStopped:
		session, reason = coordapi.SessionStopped, cmp.Or(r.Error, "stopped by its runner: "+cmp.Or(in.Signal, "SIGTERM"))
	default:
		reason = cmp.Or(reason, "the runner gave no reason")
	}
	t.end(r, status, session, reason)
	return r, nil
}

// heartbeat notes that a runner lives, with the runs that it names.
func (t *tx) heartbeat(caller Caller, in coordapi.Report) error {
	t.quiet = true
	r, err := t.alive(caller, in.RunnerID, in.Instance)
	if err != nil {
		return err
	}
	for _, id := range in.Runs {
		if o := t.c.runs[id]; o != nil && o.RunnerID == in.RunnerID && !o.Status.Ended() {
			t.heard(o)
		}
	}
	if r.Status == deregistered { // its runs may still end
		return removed(in.RunnerID)
	}
	return nil
}

// sessionStatus notes the state of a session between runs.
func (t *tx) sessionStatus(caller Caller, id string, in coordapi.Report) error {
	if _, err := t.alive(caller, in.RunnerID, in.Instance); err != nil {
		return err
	}
	s := t.session(id)
	if s == nil || s.Runner != in.RunnerID {
		return noSession(id)
	}
	switch status := coordapi.SessionStatus(in.Status); status {
	case coordapi.SessionIdle, coordapi.SessionFinished, coordapi.SessionStopped, coordapi.SessionFailed:
		if len(t.selectRuns(func(r *run) bool { return r.SessionID == id && r.RunnerID == in.RunnerID })) > 0 {
			return failf(http.StatusConflict, "the session %s has a run that has not ended; report its end", id)
		}
		if s.enter(status, in.Error); status != coordapi.SessionIdle {
			s.Stop = ""
		}
		s.LastActivity = t.now
		return nil
	default:
		return failf(http.StatusBadRequest, "status: %q is none of idle, finished, stopped and failed", in.Status)
	}
}

// remove removes a runner. One that an admin removes learns of it by the answer to its next poll. self says that the runner itself
// has ended; instance is that program.
func (t *tx) remove(caller Caller, id string, self bool, instance string) error {
	r := t.c.runners[id]
	if r == nil || r.Owner != caller.Name && !caller.Admin {
		return failf(http.StatusNotFound, "Runner %q not found", id)
	}
	if self && isOther(r, instance) {
		return named(http.StatusConflict, "duplicate_runner", "another program has registered as the runner %s, and stays", id)
	}
	if self {
		t.abandon(id, "its runner has ended")
		t.runners[id] = nil
		return nil
	}
	t.runner(id).Status = deregistered
	return nil
}

// staleAt returns when a runner that is not heard of is stale.
func (c *Coordinator) staleAt(r *runner) time.Time {
	return latest(r.LastHeartbeat.Add(staleAfter), c.opened.Add(returnWithin))
}

// expire marks and removes the runners, and ends the runs, whose time is over.
func (c *Coordinator) expire(t *tx) error {
	for id, r := range c.runners {
		switch {
		case t.now.Sub(latest(r.LastHeartbeat, c.opened)) > goneAfter:
			t.abandon(id, "its runner was not heard of for "+goneAfter.String())
			t.runners[id] = nil
		case t.now.After(c.staleAt(r)) && r.Status == online:
			t.runner(id).Status = stale
			for _, o := range t.selectRuns(func(o *run) bool { return o.RunnerID == id && o.Status == coordapi.RunClaimed }) {
				t.release(t.run(o.ID))
			}
		}
	}
	t.expireRuns()
	t.eraseHooks()
	return nil
}

// visibleRunners returns the runners of a caller; all are an admin's.
func (c *Coordinator) visibleRunners(caller Caller) []coordapi.Runner {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []coordapi.Runner{}
	for _, r := range sortedRunners(c.runners) {
		if caller.Admin || r.Owner == caller.Name {
			list = append(list, r.Runner)
		}
	}
	return list
}
