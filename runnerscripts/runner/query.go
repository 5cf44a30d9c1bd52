package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/script"
)

// errShutdown is why the work ends after a shutdown line.
var errShutdown = errors.New("shut down")

// query is one prompt on its way. Its fields are guarded by conversation.mu.
type query struct {
	id, text string
	// cancelled: it was interrupted before it was given to the agent.
	cancelled bool
	// begun: the driver has emitted something, so it can be interrupted.
	begun bool
	// interrupt it as soon as it has begun.
	interrupt bool
}

// conversation is one execute-query: it gives prompts to the agent one after the
// other while control lines are read.
type conversation struct {
	app   *app
	agent agent.Conversation
	out   *sink
	kill  context.CancelCauseFunc // ends the agent at once, and all work
	stop  context.CancelCauseFunc // ends the work; the agent is closed then
	tasks sync.WaitGroup          // answers to nobody's permission requests, late interrupts

	mu      sync.Mutex
	wake    chan struct{} // holds one token after queue or ended changed
	queue   []*query
	current *query
	started bool // the agent has been started
	ended   bool // no further prompt will come
	prompts int  // counts prompts for those without an id
	asked   map[string]bool
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
		app: a, kill: kill, stop: stop,
		wake: make(chan struct{}, 1), asked: map[string]bool{},
	}
	c.out = &sink{
		enc: a.stdout, session: req.SessionID, source: runnerscripts.SourceRunner,
		broken: kill, emitted: func(payload any) { c.emitted(ctx, payload) },
	}
	if req.Prompt != "" {
		if err := c.enqueue(req.PromptID, req.Prompt); err != nil {
			return err
		}
	}
	pending := make(chan runnerscripts.Control, mostPending)
	c.tasks.Go(func() { c.readControls(ctx, lines, pending) })
	err = a.guarded(func() (err error) {
		c.agent, err = driver.Start(life, req, c.out)
		return err
	})
	started := err == nil
	if started {
		c.setStarted()
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
		c.abandon(err)
	}
	if err != nil {
		return err
	}
	return a.finish(nil)
}

func (c *conversation) setStarted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = true
}

func (c *conversation) shutdown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shutdownLocked()
}

// shutdownLocked ends the work. An agent that has started is then closed politely, so that it
// writes what it has not written of its history yet; a start is given up.
func (c *conversation) shutdownLocked() {
	if c.started {
		c.stop(errShutdown)
		return
	}
	c.kill(errShutdown)
}

// outcome is how the script ends whose work ended with err.
func outcome(ctx context.Context, out *sink, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(context.Cause(ctx), errShutdown):
		return nil
	case out.Err() != nil:
		return out.Err()
	}
	return signalled()
}

// signalled is the failure of what a signal has ended.
func signalled() *runnerscripts.ScriptFailure {
	return &runnerscripts.ScriptFailure{
		Code: runnerscripts.FailInternal, Message: "the runner was told to end by a signal",
	}
}

// work gives the agent its prompts until there will be no more. The error is one
// after which the agent cannot go on.
func (c *conversation) work(ctx context.Context) error {
	for {
		q := c.next(ctx)
		if q == nil {
			return nil
		}
		if err := c.run(ctx, q); err != nil {
			return err
		}
	}
}

// next waits for a prompt and makes it the current one; nil means that there
// will be no more.
func (c *conversation) next(ctx context.Context) *query {
	for ctx.Err() == nil {
		c.mu.Lock()
		if len(c.queue) > 0 {
			c.current = c.queue[0]
			c.queue = c.queue[1:]
			c.mu.Unlock()
			return c.current
		}
		ended := c.ended
		c.mu.Unlock()
		if ended {
			return nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// run takes one query from query_started to its end. The error is one after
// which the agent cannot go on.
func (c *conversation) run(ctx context.Context, q *query) error {
	c.out.setQuery(q.id)
	c.report(runnerscripts.TypeQueryStarted, runnerscripts.QueryStarted{Prompt: q.text})
	c.mu.Lock()
	cancelled := q.cancelled
	c.mu.Unlock()
	start := time.Now()
	done := runnerscripts.QueryCompleted{StopReason: runnerscripts.StopCancelled}
	var err error
	if !cancelled {
		err = c.app.guarded(func() (err error) {
			done, err = c.agent.Prompt(ctx, q.id, q.text)
			return err
		})
	}
	c.mu.Lock()
	c.current = nil
	clear(c.asked)
	c.mu.Unlock()
	defer c.out.setQuery("")
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
		c.report(runnerscripts.TypeQueryCompleted, done)
		return nil
	}
	f := failure(err)
	c.report(runnerscripts.TypeQueryFailed, runnerscripts.QueryFailed{
		Code: f.Code, Message: f.Message, HTTPStatus: f.HTTPStatus,
		DurationMS: done.DurationMS, Usage: done.Usage,
	})
	if f.Code == runnerscripts.FailAgent || f.Code == runnerscripts.FailInternal {
		return err
	}
	return nil
}

// abandon ends the prompts that are still queued: cancelled, or failed because
// of err. Each accepted prompt gets an end.
func (c *conversation) abandon(err error) {
	c.mu.Lock()
	queue := c.queue
	c.queue, c.ended = nil, true
	c.mu.Unlock()
	for _, q := range queue {
		c.out.setQuery(q.id)
		c.report(runnerscripts.TypeQueryStarted, runnerscripts.QueryStarted{Prompt: q.text})
		if err == nil {
			c.report(runnerscripts.TypeQueryCompleted, runnerscripts.QueryCompleted{StopReason: runnerscripts.StopCancelled})
			continue
		}
		c.report(runnerscripts.TypeQueryFailed, runnerscripts.QueryFailed{
			Code:    failure(err).Code,
			Message: "send the prompt again: the agent ended before it came to it: " + failure(err).Message,
		})
	}
	c.out.setQuery("")
}

// report emits an event of the runner itself.
func (c *conversation) report(typ runnerscripts.EventType, payload any) {
	c.out.write(time.Now(), runnerscripts.MainConversation, typ, payload)
}
