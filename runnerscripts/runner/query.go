package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/handoff"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/queries"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/relay"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/script"
)

// errShutdown is why the work ends after a shutdown line.
var errShutdown = errors.New("shut down")

// errNotStopped is why the work ends after an interrupt that the agent has ignored.
var errNotStopped = &runnerscripts.ScriptFailure{
	Code: runnerscripts.FailAgent, Message: "the agent did not stop after an interrupt and was killed",
}

// conversation is one execute-query: it gives prompts to the agent one after the
// other while control lines are read.
type conversation struct {
	app   *app
	agent agent.Conversation
	out   *sink
	grace time.Duration           // of an interrupt
	kill  context.CancelCauseFunc // ends the agent at once, and all work
	stop  context.CancelCauseFunc // ends the work; the agent is closed then
	tasks sync.WaitGroup          // what must not hold up the control lines

	wake   chan struct{} // holds one token after queue changed
	mu     sync.Mutex
	queue  queries.Queue
	expiry *time.Timer // ends the grace period of the running query; may be nil
}

func (a *app) executeQuery(ctx context.Context) error {
	lines := runnerscripts.NewLineReader(a.stdin, 0)
	req, err := request[runnerscripts.QueryRequest](ctx, lines)
	if err != nil {
		return err
	}
	driver, err := a.driver(req.Agent.Name)
	if err != nil {
		return err
	}
	req.Agent = agent.WithProfile(req.Agent, req.Profile)
	if err := agent.CheckFeatures(driver.Recipe(), req.Agent, req.Profile); err != nil {
		return err
	}
	life, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	ctx, stop := context.WithCancelCause(life)
	defer stop(nil)
	c := &conversation{
		app: a, kill: kill, stop: stop, wake: make(chan struct{}, 1),
		grace: cmp.Or(time.Duration(req.InterruptGraceMS)*time.Millisecond, runnerscripts.DefaultInterruptGrace),
	}
	c.out = &sink{
		enc: a.stdout, session: req.SessionID, source: runnerscripts.SourceRunner,
		broken: kill, admit: func(payload any) (string, bool) { return c.admit(ctx, payload) },
	}
	if req.Prompt != "" {
		id, _, err := c.queue.Add(req.PromptID, req.Prompt)
		if err != nil {
			return err
		}
		c.queue.Accept(id)
	}
	pending := make(chan runnerscripts.Control, mostPending)
	c.tasks.Go(func() { c.readControls(ctx, lines, pending) })
	if g := req.Gateway; g != nil && g.Wait {
		way, err := relay.Start(life, g.Address())
		if err != nil {
			return fmt.Errorf("open a way to the gateway: %w", err)
		}
		defer way.Close()
		through := *g
		through.URL = "http://" + way.Address()
		req.Gateway = &through
	}
	err = a.guarded(func() (err error) {
		c.agent, err = driver.Start(life, req, c.out)
		return err
	})
	started := err == nil
	if started {
		c.agent = handoff.WithPreface(c.agent, req.Session)
		c.change(ctx, func(q *queries.Queue) []queries.Action { q.Started(); return nil })
		c.tasks.Go(func() { c.followControls(ctx, pending) })
		err = c.work(ctx)
	}
	err = outcome(ctx, c.out, err)
	if started {
		if cerr := a.guarded(c.agent.Close); err == nil && cerr != nil {
			err = fmt.Errorf("ending the agent: %w", cerr)
		}
	}
	stop(nil)
	a.stdin.Close()
	if !started {
		c.followControls(ctx, pending)
	}
	c.tasks.Wait()
	if _, crashed := errors.AsType[script.CrashError](err); crashed {
		return err
	}
	if started || err == nil {
		c.report(ctx, func(q *queries.Queue) []queries.Action { return q.Abandon(reason(err)) })
	}
	if err != nil {
		return err
	}
	return a.finish(nil)
}

// shutdown ends the work. An agent that has started is then closed politely, so that it
// writes what it has not written of its history yet; a start is given up.
func (c *conversation) shutdown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue.IsStarted() {
		c.stop(errShutdown)
		return
	}
	c.kill(errShutdown)
}

// withdraw ends the work unless the agent has a prompt or gets it.
func (c *conversation) withdraw(id string) {
	c.mu.Lock()
	withdrawn := c.queue.Withdraw(id)
	c.mu.Unlock()
	if withdrawn {
		c.shutdown()
	}
}

// outcome is how the script ends whose work ended with err.
func outcome(ctx context.Context, out *sink, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(context.Cause(ctx), errShutdown):
		return nil
	case errors.Is(context.Cause(ctx), errNotStopped):
		return errNotStopped
	case out.Err() != nil:
		return out.Err()
	}
	return signalled()
}

// signalled is the failure of what a signal has ended.
func signalled() *runnerscripts.ScriptFailure {
	return &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailInternal, Message: "a signal ended the runner",
	}
}

// reason is the failure of err; nil without one.
func reason(err error) *runnerscripts.ScriptFailure {
	if err == nil {
		return nil
	}
	return failure(err)
}

// work gives the agent its prompts until there will be no more. The error is one
// after which the agent cannot go on.
func (c *conversation) work(ctx context.Context) error {
	for {
		p, ok := c.next(ctx)
		if !ok {
			return nil
		}
		if err := c.run(ctx, p); err != nil {
			return err
		}
	}
}

// next waits for the next query and begins it. It is not ok if there will be none.
func (c *conversation) next(ctx context.Context) (p queries.Prompt, ok bool) {
	for ctx.Err() == nil {
		var done bool
		c.report(ctx, func(q *queries.Queue) (actions []queries.Action) {
			p, actions, ok, done = q.Next()
			return actions
		})
		if ok || done {
			return p, ok
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
		}
	}
	return p, false
}

// run takes a query that has begun to its end. The error is one after which the agent
// cannot go on.
func (c *conversation) run(ctx context.Context, p queries.Prompt) error {
	start := time.Now()
	var done runnerscripts.QueryCompleted
	err := c.app.guarded(func() (err error) {
		done, err = c.agent.Prompt(ctx, p.ID, p.Text)
		return err
	})
	c.mu.Lock()
	if c.expiry != nil {
		c.expiry.Stop()
	}
	c.mu.Unlock()
	if _, crashed := errors.AsType[script.CrashError](err); crashed {
		return err
	}
	if done.DurationMS == 0 {
		done.DurationMS = time.Since(start).Milliseconds()
	}
	if err != nil && ctx.Err() != nil {
		if err = outcome(ctx, c.out, err); err == nil {
			done.StopReason = runnerscripts.StopCancelled
		}
	}
	if err == nil {
		c.report(ctx, func(q *queries.Queue) []queries.Action { return q.Complete(done) })
		return nil
	}
	f := failure(err)
	c.report(ctx, func(q *queries.Queue) []queries.Action {
		return q.Fail(runnerscripts.QueryFailed{
			Code: f.Code, Message: f.Message, HTTPStatus: f.HTTPStatus,
			DurationMS: done.DurationMS, Usage: done.Usage,
		})
	})
	if f.Code == runnerscripts.FailAgent || f.Code == runnerscripts.FailInternal {
		return err
	}
	return nil
}

// change changes the queue and does what follows, but does not wait for those who read
// the events.
func (c *conversation) change(ctx context.Context, f func(*queries.Queue) []queries.Action) {
	c.mu.Lock()
	actions := f(&c.queue)
	c.mu.Unlock()
	if reports := c.perform(ctx, actions); len(reports) > 0 {
		c.tasks.Go(func() { c.write(reports) })
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// report changes the queue and does what follows. What it reports is written before
// any later event.
func (c *conversation) report(ctx context.Context, f func(*queries.Queue) []queries.Action) {
	c.out.order.Lock()
	defer c.out.order.Unlock()
	c.mu.Lock()
	actions := f(&c.queue)
	c.mu.Unlock()
	c.write(c.perform(ctx, actions))
}

func (c *conversation) write(reports []queries.Action) {
	for _, r := range reports {
		c.out.write(time.Now(), runnerscripts.MainConversation, r.Query, r.Type, r.Payload)
	}
}

// admit is for an event of the driver, before it is written. It runs inside the
// driver's Emit, so it must not call the driver.
func (c *conversation) admit(ctx context.Context, payload any) (query string, ok bool) {
	c.mu.Lock()
	query, actions, ok := c.queue.Emit(payload)
	c.mu.Unlock()
	c.perform(ctx, actions)
	return query, ok
}

// perform does what the queue asks for and returns the reports to write. It does not
// block or call the driver.
func (c *conversation) perform(ctx context.Context, actions []queries.Action) (reports []queries.Action) {
	for _, a := range actions {
		switch a.Do {
		case queries.Report:
			reports = append(reports, a)
		case queries.Interrupt:
			c.tasks.Go(func() {
				if err := c.app.guarded(func() error { return c.agent.Interrupt(ctx) }); err != nil {
					c.complain(err)
				}
			})
		case queries.StartGrace:
			c.mu.Lock()
			c.expiry = time.AfterFunc(c.grace, func() { c.expire(a.Query) })
			c.mu.Unlock()
		case queries.StopStart:
			c.kill(errShutdown)
		case queries.Reject:
			c.tasks.Go(func() { c.rejectUnanswered(ctx, a.Request) })
		}
	}
	return reports
}

// expire kills an agent that has not stopped when the grace period of its query is over.
func (c *conversation) expire(query string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue.Expire(query) {
		c.kill(errNotStopped)
	}
}
