// Package runner takes runs from a coordinator and runs each as a session on this machine.
package runner

import (
	"context"
	"crypto/rand"
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

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/session"
)

// remembered is how many ended runs, which were started, are remembered, so that one that comes again is not run again.
const remembered = 1000

// Config says what to run.
type Config struct {
	// URL is the address of the coordinator, and Client authorizes requests to it.
	URL    string
	Client *http.Client
	// Registration is what the runner says of itself. Run sets Instance.
	Registration coordapi.Registration
	// Open opens the session of a run: a new one, or that with ExecutorSessionID. release is called when the run has ended.
	Open func(ctx context.Context, r coordapi.Run) (s *session.AgentSession, release func(), err error)
	// Reports says that the executor in the sandbox sends its own messages and tool calls, so that the runner sends only results.
	Reports bool
	// Structured says that the agent gets all parameters of a run, as a JSON object, in place of a prompt.
	Structured bool
	// MaxRuns is how many runs there are at a time.
	MaxRuns int
	// Drain is how long runs may go on after ctx of Run is done, unless Hurry is closed.
	Drain time.Duration
	Hurry <-chan struct{}
	// Registered is called once, with the runner's ID; Say gets what a user may want to know.
	Registered func(id string) error
	Say        func(format string, args ...any)
	Logger     hclog.Logger
}

// ErrRemoved says that an admin has removed the runner from its coordinator.
var ErrRemoved = errors.New("the coordinator has removed this runner")

// runner is a running Run.
type runner struct {
	Config
	client *client
	id     string
	every  time.Duration // between heartbeats
	wait   time.Duration // of a poll

	mu    sync.Mutex
	jobs  map[string]*job // by the ID of the run
	ended []string        // the IDs of runs that were started and have ended, oldest first
	freed chan struct{}   // gets a value when a run ends

	draining atomic.Bool
	working  sync.WaitGroup
}

// Run registers, when no other program has the place of the runner, and takes runs until ctx is done or the coordinator removes the runner. Then it takes no more, lets those that it has
// end for the time of Config.Drain, stops the others, reports how they ended and deregisters. While the coordinator is away runs go on,
// and what it has to know waits.
func Run(ctx context.Context, cfg Config) error {
	r := &runner{Config: cfg, jobs: make(map[string]*job), freed: make(chan struct{}, 1)}
	r.Registration.Instance = rand.Text()
	r.client = &client{base: strings.TrimSuffix(cfg.URL, "/"), http: cfg.Client, log: cfg.Logger}
	if err := r.client.repeat(ctx, "register", func() error { return r.register(ctx) }); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was never there, and leaves nothing
		}
		return fmt.Errorf("register at %s: %w", cfg.URL, err)
	}
	r.client.register = r.register
	if err := r.Registered(r.id); err != nil {
		return errors.Join(err, r.leave(ctx))
	}
	lasting, end := context.WithCancelCause(context.WithoutCancel(ctx)) // ends after the runs
	defer end(nil)
	r.working.Go(func() { r.beat(lasting) })
	err := r.take(ctx, lasting)
	r.drain(lasting)
	if !errors.Is(err, ErrRemoved) && !replaced(err) {
		err = errors.Join(err, r.leave(lasting))
	}
	end(nil)
	r.working.Wait()
	return err
}

// register registers the runner, also again.
func (r *runner) register(ctx context.Context) error {
	var got coordapi.Registered
	err := r.client.do(ctx, 0, http.MethodPost, "/runner/register", r.Registration, &got)
	if refused, is := errors.AsType[*refused](err); is && refused.status == http.StatusNotFound {
		return fmt.Errorf("%w; %s", err, r.client.hint())
	}
	if err != nil {
		return err
	}
	if got.RunnerID == "" {
		return fmt.Errorf("the answer is none of a coordinator: it has no runner_id; %s", r.client.hint())
	}
	if r.id == "" { // the first time, when nothing else runs; the same registration has the same ID
		r.id = got.RunnerID
		r.wait, r.every = seconds(got.PollTimeoutSeconds), seconds(got.HeartbeatIntervalSeconds)
	}
	return nil
}

// seconds returns a time that a coordinator chose: from a second to an hour.
func seconds(n int) time.Duration { return time.Duration(min(max(n, 1), 3600)) * time.Second }

// leave deregisters.
func (r *runner) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := r.client.do(ctx, 0, http.MethodDelete, "/runners/"+url.PathEscape(r.id)+"?self=true&instance="+r.Registration.Instance, nil, nil); err != nil {
		r.Logger.Warn("the coordinator does not know that this runner has ended", "error", err)
	}
	return nil
}

// report returns a report of this runner.
func (r *runner) report() coordapi.Report {
	return coordapi.Report{RunnerID: r.id, Instance: r.Registration.Instance}
}

// take takes runs until ctx is done. They go on after it.
func (r *runner) take(ctx, lasting context.Context) error {
	for ctx.Err() == nil {
		var next coordapi.Polled
		full := r.full()
		err := r.client.repeat(ctx, "poll", func() error {
			next = coordapi.Polled{}
			path := fmt.Sprintf("/runner/runs?runner_id=%s&instance=%s&full=%t", url.QueryEscape(r.id), r.Registration.Instance, full)
			return r.poll(ctx, path, full, &next)
		})
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it is to end
		case err != nil:
			return fmt.Errorf("poll: %w", err)
		case next.Deregistered:
			return ErrRemoved
		}
		for _, id := range next.StopSessions {
			r.stop(lasting, id)
		}
		if next.Run != nil {
			r.begin(lasting, *next.Run)
		}
	}
	return nil
}

// poll asks for something to do. A runner that is full asks again as soon as it is not.
func (r *runner) poll(ctx context.Context, path string, full bool, next *coordapi.Polled) error {
	if !full {
		return r.client.do(ctx, r.wait, http.MethodGet, path, nil, next)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	freed := make(chan struct{})
	go func() {
		defer close(freed)
		select {
		case <-r.freed:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := r.client.do(ctx, r.wait, http.MethodGet, path, nil, next)
	if ctx.Err() != nil {
		err = nil // a stop that was lost comes again
	}
	cancel()
	<-freed
	return err
}

// full reports whether the runner takes no more runs now, as one that ends.
func (r *runner) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.freed:
	default:
	}
	return len(r.jobs) >= r.MaxRuns || r.draining.Load()
}

// begin runs a run, unless it has come before.
func (r *runner) begin(ctx context.Context, run coordapi.Run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs[run.ID] != nil || slices.Contains(r.ended, run.ID) {
		return // its reports are on their way
	}
	j := newJob(ctx, r, run)
	r.jobs[run.ID] = j
	r.working.Go(func() { //nolint:contextcheck // a job has a context of its own, of ctx
		started := j.work()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.jobs, run.ID)
		if started { // another one may come again, and is to be run then
			r.ended = append(r.ended[max(0, len(r.ended)-remembered+1):len(r.ended):len(r.ended)], run.ID)
		}
		select {
		case r.freed <- struct{}{}:
		default:
		}
	})
}

// stop stops the run of a session. One that this runner does not have has ended.
func (r *runner) stop(ctx context.Context, id string) {
	found := false
	for _, j := range r.all() {
		if j.run.SessionID == id {
			found = true
			j.stop("SIGTERM")
		}
	}
	if found {
		return
	}
	r.working.Go(func() {
		in := r.report()
		in.Status = string(coordapi.SessionStopped)
		err := r.client.do(ctx, 0, http.MethodPost, "/runner/sessions/"+url.PathEscape(id)+"/status", in, nil)
		r.Logger.Debug("a session to stop is not here", "session", id, "error", err)
	})
}

// all returns the runs that there are.
func (r *runner) all() []*job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.jobs))
}

// beat says that the runner lives, and which runs it has, until ctx is done.
func (r *runner) beat(ctx context.Context) {
	for pause(ctx, r.every) == nil {
		in := r.report()
		for _, j := range r.all() {
			in.Runs = append(in.Runs, j.run.ID)
		}
		if err := r.client.deliver(ctx, http.MethodPost, "/runner/heartbeat", in); err != nil && ctx.Err() == nil {
			r.Logger.Warn("the coordinator refuses a heartbeat", "error", err)
		}
	}
}

// drain waits for the runs to end, and stops them when their time is over, or when the coordinator says so.
func (r *runner) drain(ctx context.Context) {
	r.draining.Store(true)
	left := r.all()
	if len(left) == 0 {
		return
	}
	r.Say("waiting up to %v for the runs that are left: %d", r.Drain, len(left))
	polling, end := context.WithCancel(ctx)
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		if err := r.take(polling, ctx); err != nil { // stops alone, because it is full
			r.Logger.Debug("stops do not come any more", "error", err)
		}
	}()
	defer func() { // before the runner leaves: a later poll would register it again
		end()
		<-polled
	}()
	timed, cancel := context.WithTimeout(ctx, r.Drain)
	defer cancel()
	for _, j := range left {
		select {
		case <-j.done:
		case <-timed.Done():
		case <-r.Hurry:
			cancel()
		}
	}
	for _, j := range r.all() {
		j.hurry()
	}
	for _, j := range left {
		<-j.done
	}
}
