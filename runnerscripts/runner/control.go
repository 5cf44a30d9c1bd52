package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// settingTime is how long an agent has to take a new mode or model.
const settingTime = 30 * time.Second

// mostQueued is how many prompts may wait.
const mostQueued = 1000

// mostPending is how many control lines may wait while the agent is busy with one.
const mostPending = 100

// readControls reads control lines until the input ends, and passes them on in
// their order. Only what ends something does not wait for its turn: it must be
// heeded while the agent starts, or hangs.
func (c *conversation) readControls(ctx context.Context, lines *runnerscripts.LineReader, pending chan<- runnerscripts.Control) {
	defer close(pending)
	for {
		line, err := lines.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil && !errors.Is(err, io.ErrClosedPipe) {
				c.complain(fmt.Errorf("reading control lines: %w", err))
			}
			return
		}
		if ctx.Err() != nil && lines.Unterminated() {
			return // it was cut by the end of the work
		}
		ctl, err := runnerscripts.DecodeControl(line)
		switch {
		case err != nil:
			c.complain(err)
		case ctl.Type == runnerscripts.ControlShutdown:
			c.shutdown()
		case ctl.Type == runnerscripts.ControlInterrupt && c.interruptStart(len(pending) > 0):
		default:
			pending <- ctl
		}
	}
}

// interruptStart stops the query for which the agent is being started, if it is, and
// the start, too, if it would be for nothing.
func (c *conversation) interruptStart(more bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started || len(c.queue) == 0 {
		return false
	}
	c.queue[0].cancelled = true
	if len(c.queue) == 1 && !more {
		c.shutdownLocked()
	}
	return true
}

// followControls follows control lines until there are no more. One that cannot
// be followed is an error event and nothing more. When the work is over only
// prompts count: each one gets an end.
func (c *conversation) followControls(ctx context.Context, pending <-chan runnerscripts.Control) {
	for ctl := range pending {
		if ctx.Err() != nil && ctl.Type != runnerscripts.ControlPrompt {
			continue
		}
		err := c.app.guarded(func() error { return c.control(ctx, ctl) })
		if err != nil && ctx.Err() == nil {
			c.complain(err)
		}
	}
	if ctx.Err() == nil {
		c.endOfInput(ctx)
	}
}

func (c *conversation) control(ctx context.Context, ctl runnerscripts.Control) error {
	switch ctl.Type {
	case runnerscripts.ControlPrompt:
		return c.enqueue(ctl.ID, ctl.Text)
	case runnerscripts.ControlInterrupt:
		return c.interrupt(ctx)
	case runnerscripts.ControlPermission:
		if ctl.ID == "" || ctl.Decision == nil {
			return invalid(`a permission line needs "id" and "decision"`)
		}
		return c.respond(ctx, ctl.ID, *ctl.Decision)
	case runnerscripts.ControlSetMode:
		return setting(ctx, c.agent.SetMode, ctl.Value)
	case runnerscripts.ControlSetModel:
		return setting(ctx, c.agent.SetModel, ctl.Value)
	case runnerscripts.ControlCredential:
		return &runnerscripts.ScriptFailure{
			Code:    runnerscripts.FailUnsupported,
			Message: "leave credential lines out: no agent of this runner asks for one",
		}
	}
	return invalid("correct the control line: there is no type %q", ctl.Type)
}

// setting changes a setting of the agent, within a time.
func setting(ctx context.Context, set func(context.Context, string) error, value string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settingTime, &runnerscripts.ScriptFailure{
		Code:    runnerscripts.FailAgent,
		Message: fmt.Sprintf("shut the query down if it hangs: the agent did not take %q within %v", value, settingTime),
	})
	defer cancel()
	return set(ctx, value)
}

func (c *conversation) enqueue(id, text string) error {
	if text == "" {
		return invalid(`give the prompt a "text"`)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) >= mostQueued {
		return invalid("wait for queries to end before you send more: %d prompts are queued, and prompt %q was left out", mostQueued, id)
	}
	c.prompts++
	if id == "" {
		id = "query-" + strconv.Itoa(c.prompts)
	}
	c.queue = append(c.queue, &query{id: id, text: text})
	c.signal()
	return nil
}

// signal wakes next. c.mu is held.
func (c *conversation) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// interrupt stops the running query. One that the agent does not know of yet is
// interrupted when it does, or never given to it: an interrupt that follows its
// prompt closely is not lost.
func (c *conversation) interrupt(ctx context.Context) error {
	c.mu.Lock()
	switch {
	case c.current == nil && len(c.queue) > 0:
		c.queue[0].cancelled = true
	case c.current != nil && !c.current.begun:
		c.current.interrupt = true
	case c.current != nil:
		c.mu.Unlock()
		return c.agent.Interrupt(ctx)
	}
	c.mu.Unlock()
	return nil
}

// emitted follows what the driver reports. It runs inside the driver's Emit, so
// it must not call the driver.
func (c *conversation) emitted(ctx context.Context, payload any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.current; q != nil && !q.begun {
		q.begun = true
		if q.interrupt {
			c.tasks.Go(func() {
				if err := c.app.guarded(func() error { return c.agent.Interrupt(ctx) }); err != nil {
					c.complain(err)
				}
			})
		}
	}
	switch p := payload.(type) {
	case runnerscripts.PermissionRequest:
		c.asked[p.ID] = true
		if c.ended {
			c.rejectUnanswered(ctx, p.ID)
		}
	case runnerscripts.PermissionResolved:
		delete(c.asked, p.ID)
	}
}

// endOfInput lets the running and the queued queries finish. Nobody is left to
// answer permission requests, so they are rejected.
func (c *conversation) endOfInput(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for id := range c.asked {
		c.rejectUnanswered(ctx, id)
	}
	c.signal()
}

// rejectUnanswered starts the rejection of a permission request. c.mu is held.
func (c *conversation) rejectUnanswered(ctx context.Context, id string) {
	delete(c.asked, id)
	c.tasks.Go(func() {
		err := c.respond(ctx, id, runnerscripts.PermissionDecision{
			Kind:    runnerscripts.RejectOnce,
			Message: "standard input of the runner has ended: nobody can answer",
		})
		// It may have been answered or withdrawn at the same time.
		if err != nil && failure(err).Code != runnerscripts.FailInvalidRequest {
			c.complain(err)
		}
	})
}

// respond gives the agent the answer to a permission request. If the agent cannot use the
// answer, the request is rejected: the caller has decided and does not answer again, so
// the query would wait for ever.
func (c *conversation) respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	answer := func(d runnerscripts.PermissionDecision) error {
		return c.app.guarded(func() error { return c.agent.Respond(ctx, id, d) })
	}
	c.mu.Lock()
	delete(c.asked, id)
	c.mu.Unlock()
	err := answer(d)
	if err == nil {
		return nil
	}
	f := failure(err)
	rejected := answer(runnerscripts.PermissionDecision{
		Kind: runnerscripts.RejectOnce, Message: "The answer cannot be used: " + f.Message,
	})
	if rejected != nil {
		return err // the request does not wait
	}
	return &runnerscripts.ScriptFailure{
		Code: f.Code, Message: fmt.Sprintf("the answer to permission request %q was taken for a rejection: %s", id, f.Message),
	}
}

// complain reports an error that ends nothing.
func (c *conversation) complain(err error) {
	f := failure(err)
	c.report(runnerscripts.TypeError, runnerscripts.ErrorInfo{Code: f.Code, Message: f.Message})
}

func invalid(format string, args ...any) *runnerscripts.ScriptFailure {
	return &runnerscripts.ScriptFailure{Code: runnerscripts.FailInvalidRequest, Message: fmt.Sprintf(format, args...)}
}
