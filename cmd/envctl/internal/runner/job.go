package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// lastReports is how long the last reports of a run may take when the runner ends.
const lastReports = 10 * time.Second

// job is a run in work.
type job struct {
	r      *runner
	run    coordapi.Run
	done   chan struct{}
	ctx    context.Context //nolint:containedctx // lives as long as work
	cancel context.CancelCauseFunc
	// stopped is done when the run is to stop.
	stopped context.Context //nolint:containedctx // lives as long as work
	stopRun context.CancelCauseFunc
	once    sync.Once
	// agent is the session from when it has the prompt.
	agent atomic.Pointer[session.AgentSession]
}

// signalled is the cause of a stop, with the signal that a runner reports.
type signalled string

func (s signalled) Error() string { return "stopped by " + string(s) }

// errHurry is the cause of the end of a job whose reports take too long.
var errHurry = errors.New("the runner ends")

func newJob(ctx context.Context, r *runner, run coordapi.Run) *job {
	j := &job{r: r, run: run, done: make(chan struct{})}
	j.ctx, j.cancel = context.WithCancelCause(ctx)
	j.stopped, j.stopRun = context.WithCancelCause(j.ctx)
	return j
}

// stop asks the agent to stop.
func (j *job) stop(signal string) { j.stopRun(signalled(signal)) }

// hurry stops the agent, and ends the job soon after, whatever the coordinator says.
func (j *job) hurry() {
	j.once.Do(func() {
		j.stop("SIGTERM")
		timer := time.AfterFunc(runnerscripts.DefaultInterruptGrace+lastReports, func() { j.cancel(errHurry) })
		context.AfterFunc(j.ctx, func() { timer.Stop() })
	})
}

// work runs the run and reports. It returns whether the coordinator has acknowledged the start; if not, the run was not run.
func (j *job) work() (started bool) {
	defer close(j.done)
	defer j.cancel(nil)
	r := j.r
	if j.run.Type == coordapi.ResumeSession {
		// If another program of this machine has the session, the run comes again because it was not started: here or to another runner.
		_, release, err := r.Open(j.stopped, j.run)
		if errors.Is(err, store.ErrLocked) {
			r.Say("%s: not run now: %v", j.run.ID, err)
			return false
		}
		if err == nil { // else perform fails
			defer release()
		}
	}
	if err := j.report("started", r.report()); err != nil {
		r.Say("%s: not run: %v", j.run.ID, err) // another runner may have it, or it was stopped
		return false
	}
	r.Say("%s: %s %s", j.run.ID, j.run.Type, j.run.SessionID)
	err := j.perform()
	if errors.Is(err, errHurry) {
		r.Logger.Error("the coordinator does not know how a run ended", "run", j.run.ID, "error", err)
		return true
	}
	in, what := r.report(), "completed"
	signal, wasStopped := errors.AsType[signalled](context.Cause(j.stopped))
	switch {
	case err == nil:
		in.Status = "success"
	case wasStopped:
		what, in.Signal = "stopped", string(signal)
	default:
		what, in.Error = "failed", err.Error()
	}
	if err := j.report(what, in); err != nil {
		r.Logger.Error("the coordinator does not know how a run ended", "run", j.run.ID, "end", what, "error", err)
	}
	if err != nil {
		r.Say("%s: %s: %v", j.run.ID, what, err)
		return true
	}
	r.Say("%s: %s", j.run.ID, what)
	return true
}

// report reports on the run until the coordinator knows.
func (j *job) report(what string, in coordapi.Report) error {
	return j.deliver("/runner/runs/"+url.PathEscape(j.run.ID)+"/"+what, in)
}

// session sends something about the session until the coordinator has it.
func (j *job) session(what string, in any) error {
	return j.deliver("/sessions/"+url.PathEscape(j.run.SessionID)+"/"+what, in)
}

// deliver sends something until the coordinator acknowledges or refuses it. If the token is refused while the runner ends, it waits for
// the agent alone.
func (j *job) deliver(path string, in any) error {
	return j.r.client.repeat(j.ctx, path, func() error {
		err := j.r.client.do(j.ctx, 0, http.MethodPost, path, in, nil)
		if unauthorized(err) && j.r.draining.Load() && j.turn() == nil {
			j.cancel(errHurry)
		}
		return err
	})
}

// turn returns the query of the run; nil before it and after its end.
func (j *job) turn() *session.Turn {
	s := j.agent.Load()
	if s == nil {
		return nil
	}
	for _, t := range s.Turns() {
		if t.ID() == j.run.ID {
			return t
		}
	}
	return nil
}

// perform runs the prompt in its session, and sends what happens. It reads the events from the store of the session: while the
// coordinator is away the agent goes on, and the events wait.
func (j *job) perform() (err error) {
	s, release, err := j.r.Open(j.stopped, j.run)
	if err != nil {
		return err
	}
	defer release()
	reg := j.r.Registration
	if err := j.session("bind", coordapi.Bind{
		ExecutorSessionID: s.ID(), Hostname: reg.Hostname, ExecutorProfile: reg.ExecutorProfile, ProjectDir: cmp.Or(j.run.ProjectDir, reg.ProjectDir),
	}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	// The ID of the run is that of the query, so that a session never has it twice.
	q := environment.Query{ID: j.run.ID, Prompt: j.prompt()}
	if j.run.Blueprint != nil && !j.r.Reports && coordapi.IsSet(j.run.Blueprint.OutputSchema) { // an executor has its own way to bind its output
		q.OutputSchema = j.run.Blueprint.OutputSchema
	}
	turn, err := s.PromptOnce(j.stopped, q)
	if err != nil {
		return err
	}
	j.agent.Store(s)
	stop := context.AfterFunc(j.stopped, j.interrupt)
	defer stop()
	err = j.follow(s, turn.Seq())
	j.interrupt() // if the coordinator wants no more of it
	return err
}

// interrupt stops the query of the run, or withdraws it. It does nothing if that has ended.
func (j *job) interrupt() {
	t := j.turn()
	if t == nil {
		return
	}
	if err := t.Interrupt(context.WithoutCancel(j.ctx)); err != nil {
		j.r.Logger.Warn("a run cannot be stopped", "run", j.run.ID, "error", err)
	}
}

// prompt returns the text for the agent: the prompt, or for an agent with parameters of its own all of them.
func (j *job) prompt() string {
	r := j.run
	own := r.Blueprint != nil && coordapi.IsSet(r.Blueprint.ParametersSchema)
	if j.r.Structured {
		var object map[string]json.RawMessage
		if !own && json.Unmarshal([]byte(r.Prompt), &object) == nil { // a run without an agent of its own has a prompt alone
			return r.Prompt
		}
		return string(r.Parameters)
	}
	if !own || r.Type == coordapi.ResumeSession {
		return r.Prompt
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(r.Parameters, &all); err != nil {
		return r.Prompt
	}
	var b strings.Builder
	b.WriteString("<inputs>\n")
	for _, key := range slices.Sorted(maps.Keys(all)) {
		text := string(all[key])
		_ = json.Unmarshal(all[key], &text) // a text without its quotes; others are JSON
		fmt.Fprintf(&b, "%s: %s\n", key, text)
	}
	b.WriteString("</inputs>")
	return b.String()
}

// follow sends the events of the query, up to its end.
func (j *job) follow(s *session.AgentSession, from uint64) error {
	said := newTeller(j.run, j.prompt())
	for ev, err := range s.Events(j.ctx, from) {
		if err != nil {
			return err
		}
		if ev.QueryID != j.run.ID {
			continue
		}
		for _, out := range said.hear(ev) {
			if j.r.Reports && out.Type != coordapi.EventResult {
				continue
			}
			err := j.session("events", out)
			if r, is := errors.AsType[*refused](err); is && r.status == http.StatusRequestEntityTooLarge {
				j.r.Logger.Warn("the coordinator has no room for an event, which is lost there", "run", j.run.ID, "event", out.Type, "error", err)
				continue
			}
			if err != nil {
				return fmt.Errorf("send an event: %w", err)
			}
		}
		if ev.Type.EndsQuery() {
			return ending(ev)
		}
	}
	return errors.New("the session was closed before the run ended")
}

// ending returns how a query has ended.
func ending(ev runnerscripts.Event) error {
	if ev.Type == runnerscripts.TypeQueryFailed {
		failed, err := runnerscripts.Payload[runnerscripts.QueryFailed](ev)
		return errors.Join(err, fmt.Errorf("%s: %s", failed.Code, failed.Message))
	}
	completed, err := runnerscripts.Payload[runnerscripts.QueryCompleted](ev)
	if err == nil && completed.StopReason == runnerscripts.StopCancelled {
		err = errors.New("it was interrupted")
	}
	return err
}
