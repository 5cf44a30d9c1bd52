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

// errShutdown is the cause of the end after a shutdown line.
var errShutdown = errors.New("shut down")

// errNotStopped is the cause of the end after an interrupt that the agent ignored.
var errNotStopped = &runnerscripts.ScriptFailure{
	Code: runnerscripts.FailAgent, Message: "the agent did not stop after an interrupt and was killed",
}

// conversation is one execute-query. It gives prompts to the agent one after the other, and reads
// control lines at the same time.
type conversation struct {
	app    *app
	agent  agent.Conversation
	binder agent.OutputBinder // nil if the agent cannot be bound to a schema
	recipe runnerscripts.Recipe
	out    *sink
	grace  time.Duration           // grace period after an interrupt
	kill   context.CancelCauseFunc // ends the agent at once, and all work
	stop   context.CancelCauseFunc // ends the work; then the agent is closed
	tasks  sync.WaitGroup          // tasks that must not block the control lines

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
	if req.Agent, err = driver.Recipe().Resolve(req.Agent, req.Profile); err != nil {
		return err
	}
	req.Profile.DeniedTools = agent.Withheld(driver, req.Session, req.Profile)
	life, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	ctx, stop := context.WithCancelCause(life)
	defer stop(nil)
	c := &conversation{
		app: a, recipe: driver.Recipe(), kill: kill, stop: stop, wake: make(chan struct{}, 1),
		grace: cmp.Or(time.Duration(req.InterruptGraceMS)*time.Millisecond, runnerscripts.DefaultInterruptGrace),
	}
	c.out = &sink{
		enc: a.stdout, session: req.SessionID, source: runnerscripts.SourceRunner,
		broken: kill, admit: func(payload any) (string, bool) { return c.admit(ctx, payload) },
	}
	if req.Prompt != "" {
		id, _, err := c.queue.Add(queries.Prompt{ID: req.PromptID, Text: req.Prompt, Attachments: req.Attachments, OutputSchema: req.OutputSchema})
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
		c.binder, _ = c.agent.(agent.OutputBinder)
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

// shutdown ends the work. It closes a started agent gracefully, so that the agent writes the rest
// of its history. It aborts a start.
func (c *conversation) shutdown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue.IsStarted() {
		c.stop(errShutdown)
		return
	}
	c.kill(errShutdown)
}

// withdraw withdraws a prompt. If the queue allows it, withdraw ends the work.
func (c *conversation) withdraw(id string) {
	c.mu.Lock()
	withdrawn := c.queue.Withdraw(id)
	c.mu.Unlock()
	if withdrawn {
		c.shutdown()
	}
}

// outcome returns the error with which the script ends, for the error err of its work.
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

// signalled returns the failure of a script that a signal ended.
func signalled() *runnerscripts.ScriptFailure {
	return &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailInternal, Message: "a signal ended the runner",
	}
}

// reason returns err as a failure, or nil without an error.
func reason(err error) *runnerscripts.ScriptFailure {
	if err == nil {
		return nil
	}
	return failure(err)
}

// work gives the agent its prompts until there are no more. It returns an error only if the agent
// cannot continue.
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

// next waits for the next query and starts it. ok is false if there are no more queries.
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

// run runs a started query to its end. It returns an error only if the agent cannot continue.
func (c *conversation) run(ctx context.Context, p queries.Prompt) error {
	start := time.Now()
	var done runnerscripts.QueryCompleted
	err := c.app.guarded(func() (err error) {
		if err = c.recipe.Accept(p.Attachments); err == nil {
			done, err = c.prompt(ctx, p)
		}
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
			DurationMS: done.DurationMS, Usage: done.Usage, Detail: f.Detail,
		})
	})
	if f.Code == runnerscripts.FailAgent || f.Code == runnerscripts.FailInternal {
		return err
	}
	return nil
}

// change changes the queue and performs the resulting actions. It does not wait for readers of the
// events.
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

// report changes the queue and performs the resulting actions. It writes their reports before any
// later event.
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

// admit handles an event of the driver before it is written. It runs inside the driver's Emit, so
// it must not call the driver.
func (c *conversation) admit(ctx context.Context, payload any) (query string, ok bool) {
	c.mu.Lock()
	query, actions, ok := c.queue.Emit(payload)
	c.mu.Unlock()
	c.perform(ctx, actions)
	return query, ok
}

// perform performs actions and returns the reports to write. It does not block or call the driver.
func (c *conversation) perform(ctx context.Context, actions []queries.Action) (reports []queries.Action) {
	for _, a := range actions {
		switch a.Do {
		case queries.Report:
			reports = append(reports, a)
		case queries.Interrupt:
			c.tasks.Go(func() {
				if err := c.app.guarded(func() error { return c.agent.Interrupt(ctx) }); err != nil {
					c.reportError(err)
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

// expire kills the agent if it has not stopped within the grace period of its query.
func (c *conversation) expire(query string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queue.Expire(query) {
		c.kill(errNotStopped)
	}
}
