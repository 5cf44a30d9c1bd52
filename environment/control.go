package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Interrupt asks the running query to stop and does not wait for it: the query
// completes with runnerscripts.StopCancelled. One that is still being prepared is
// stopped when it has begun. An agent that does not stop within
// runnerscripts.DefaultInterruptGrace is killed, and the query fails. A second interrupt
// changes nothing. Without a running query Interrupt does nothing.
func (e *Environment) Interrupt(ctx context.Context) error {
	e.mu.Lock()
	closed, q := e.closed, e.query
	e.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case q == nil:
		return nil
	}
	p := e.interrupt(q)
	if p == nil {
		return nil
	}
	if err := p.send(ctx, q.interruptLine()); err != nil && !errors.Is(err, errScriptExited) {
		return err
	}
	return nil
}

// interrupt marks a query as interrupted. It returns the process that must be told: nil
// if the query was interrupted before, or no process has the prompt.
func (e *Environment) interrupt(q *activeQuery) *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.interrupted {
		return nil
	}
	q.interrupted = true
	close(q.stop)
	return q.proc
}

func (q *activeQuery) interruptLine() runnerscripts.Control {
	return runnerscripts.Control{Type: runnerscripts.ControlInterrupt, ID: q.id}
}

// SetMode changes the agent's permission mode, now and for agents that this
// environment starts later.
func (e *Environment) SetMode(ctx context.Context, mode string) error {
	return e.set(ctx, runnerscripts.ControlSetMode, mode, &e.mode)
}

// SetModel changes the agent's model, now and for agents that this environment
// starts later.
func (e *Environment) SetModel(ctx context.Context, model string) error {
	return e.set(ctx, runnerscripts.ControlSetModel, model, &e.model)
}

func (e *Environment) set(ctx context.Context, typ runnerscripts.ControlType, value string, kept *string) error {
	if value == "" {
		return fmt.Errorf("%s: %w: the value is empty", typ, fs.ErrInvalid)
	}
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.mu.Lock()
	*kept = value
	p := e.agent
	e.mu.Unlock()
	if p == nil {
		return nil
	}
	err = p.send(ctx, runnerscripts.Control{Type: typ, Value: value})
	if errors.Is(err, errScriptExited) {
		return nil // the next one starts with the value
	}
	return err
}

// control sends a line to the running query.
func (e *Environment) control(ctx context.Context, c runnerscripts.Control) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.mu.Lock()
	var p *process
	if e.query != nil {
		p = e.query.proc
	}
	e.mu.Unlock()
	if p == nil {
		return ErrNoQuery
	}
	err = p.send(ctx, c)
	if errors.Is(err, errScriptExited) {
		return ErrNoQuery
	}
	return err
}
