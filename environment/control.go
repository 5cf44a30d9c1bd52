package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Interrupt asks the running query to stop and does not wait for it: the query
// completes with runnerscripts.StopCancelled. One that is still being prepared is
// stopped when it has begun. Without a running query it does nothing.
func (e *Environment) Interrupt(ctx context.Context) error {
	e.mu.Lock()
	closed, prompted := e.closed, !e.asked.prompted.IsZero()
	if e.asked.id != "" && e.asked.interrupted.IsZero() {
		e.asked.interrupted = time.Now()
	}
	e.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case !prompted:
		return nil
	}
	err := e.control(ctx, interruptLine)
	if errors.Is(err, ErrNoQuery) {
		return nil
	}
	return err
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
	p, running := e.agent, e.asked.id != ""
	e.mu.Unlock()
	if p == nil || !running {
		return ErrNoQuery
	}
	err = p.send(ctx, c)
	if errors.Is(err, errScriptExited) {
		return ErrNoQuery
	}
	return err
}
