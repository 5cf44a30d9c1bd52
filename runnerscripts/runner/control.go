package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/queries"
)

// settingTime is how long an agent may take to accept a new mode or model.
const settingTime = 30 * time.Second

// mostPending is how many control lines may wait while the agent handles one.
const mostPending = 100

// readControls reads control lines until the input ends, and passes them on in order. A shutdown,
// an interrupt and the withdrawal of a prompt do not wait for their turn: they work while the agent
// starts or hangs.
func (c *conversation) readControls(ctx context.Context, lines *runnerscripts.LineReader, pending chan<- runnerscripts.Control) {
	defer close(pending)
	for {
		line, err := lines.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil && !errors.Is(err, io.ErrClosedPipe) {
				c.reportError(fmt.Errorf("reading control lines: %w", err))
			}
			return
		}
		if ctx.Err() != nil && lines.Unterminated() {
			return // the end of the work cut the line off
		}
		ctl, err := runnerscripts.DecodeControl(line)
		switch {
		case err != nil:
		case ctl.Type == runnerscripts.ControlShutdown:
			c.shutdown()
			continue
		case ctl.Type == runnerscripts.ControlWithdraw:
			c.withdraw(ctl.ID)
			continue
		case ctl.Type == runnerscripts.ControlInterrupt:
			c.change(ctx, func(q *queries.Queue) []queries.Action { return q.Interrupt(ctl.ID) })
			continue
		case ctl.Type == runnerscripts.ControlPrompt:
			c.change(ctx, func(q *queries.Queue) (actions []queries.Action) {
				ctl.ID, actions, err = q.Add(queries.Prompt{ID: ctl.ID, Text: ctl.Text, Attachments: ctl.Attachments, OutputSchema: ctl.OutputSchema})
				return actions
			})
		}
		if err != nil {
			c.reportError(err)
			continue
		}
		pending <- ctl
	}
}

// followControls executes control lines until pending is closed. A line that fails becomes an error
// event and has no other effect. When the work is over, followControls only drains pending.
func (c *conversation) followControls(ctx context.Context, pending <-chan runnerscripts.Control) {
	for ctl := range pending {
		if ctx.Err() != nil {
			continue
		}
		err := c.app.guarded(func() error { return c.control(ctx, ctl) })
		if err != nil && ctx.Err() == nil {
			c.reportError(err)
		}
	}
	if ctx.Err() == nil {
		c.change(ctx, (*queries.Queue).Close)
	}
}

func (c *conversation) control(ctx context.Context, ctl runnerscripts.Control) error {
	switch ctl.Type {
	case runnerscripts.ControlPrompt:
		c.change(ctx, func(q *queries.Queue) []queries.Action { q.Accept(ctl.ID); return nil })
		return nil
	case runnerscripts.ControlOutput:
		c.change(ctx, func(q *queries.Queue) []queries.Action { q.Judge(ctl.ID, ctl.Text); return nil })
		return nil
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

// setting changes a setting of the agent within settingTime.
func setting(ctx context.Context, set func(context.Context, string) error, value string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settingTime, &runnerscripts.ScriptFailure{
		Code:    runnerscripts.FailAgent,
		Message: fmt.Sprintf("shut the query down if it hangs: the agent did not take %q within %v", value, settingTime),
	})
	defer cancel()
	return set(ctx, value)
}

// noProgram says why a permission request is rejected after the input has ended.
const noProgram = "the program that could answer has ended, and no other one has attached meanwhile"

// rejectUnanswered rejects a permission request that nobody can answer after the input has ended.
func (c *conversation) rejectUnanswered(ctx context.Context, id string) {
	err := c.answer(ctx, id, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "It waited for an answer: " + noProgram + "."})
	switch {
	case err == nil:
		c.tell(runnerscripts.TypeLog, runnerscripts.Log{
			Level: "warn", Message: fmt.Sprintf("permission request %q was rejected: it waited for an answer, but %s", id, noProgram),
		})
	case failure(err).Code != runnerscripts.FailInvalidRequest: // else the agent has withdrawn it at the same time
		c.reportError(err)
	}
}

// respond passes the answer to a permission request to the agent. If the agent cannot use the
// answer, respond rejects the request: the caller has decided and does not answer again, so the
// query would wait forever.
func (c *conversation) respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	c.mu.Lock()
	ok, err := c.queue.Answer(id)
	c.mu.Unlock()
	if !ok {
		return err
	}
	if err = c.answer(ctx, id, d); err == nil {
		return nil
	}
	f := failure(err)
	rejected := c.answer(ctx, id, runnerscripts.PermissionDecision{
		Kind: runnerscripts.RejectOnce, Message: "The answer cannot be used: " + f.Message,
	})
	if rejected != nil {
		return err // the request no longer waits
	}
	return &runnerscripts.ScriptFailure{
		Code: f.Code, Message: fmt.Sprintf("the answer to permission request %q was taken for a rejection: %s", id, f.Message),
	}
}

func (c *conversation) answer(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	return c.app.guarded(func() error { return c.agent.Respond(ctx, id, d) })
}

// reportError reports an error that does not end the query or the script.
func (c *conversation) reportError(err error) {
	f := failure(err)
	c.tell(runnerscripts.TypeError, runnerscripts.ErrorInfo{Code: f.Code, Message: f.Message})
}

// tell writes an event of the running query.
func (c *conversation) tell(typ runnerscripts.EventType, payload any) {
	c.out.order.Lock()
	defer c.out.order.Unlock()
	c.mu.Lock()
	query := c.queue.Running()
	c.mu.Unlock()
	c.out.write(time.Now(), runnerscripts.MainConversation, query, typ, payload)
}

func invalid(format string, args ...any) *runnerscripts.ScriptFailure {
	return &runnerscripts.ScriptFailure{Code: runnerscripts.FailInvalidRequest, Message: fmt.Sprintf(format, args...)}
}
