package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	program "github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// FollowQuery returns the events of the query that runs in the sandbox, whichever program sent
// its prompt, until the query ends. If no query runs, it returns the events of the last one. It
// omits events whose Index is at most after, so that a program that has some events continues
// with the next one. Zero starts at the beginning.
//
// A query in a kept sandbox outlives its program, and FollowQuery continues it. The query can be
// interrupted, and its permission requests can be answered, like those of a query of this
// environment. This includes the requests in omitted events. Requests that were settled before
// are [ErrNotPending], and Config.OnPermission is not called for them. If OnPermission is nil,
// requests are left to the program that began the query.
//
// The sequence ends as that of [Environment.ExecuteQuery]. If ctx is done, the loop ends early
// or the environment is closed, the query continues. The error is [ErrNoQuery] if no query was
// begun since the sandbox was created, or if the sandbox has no durable commands.
func (e *Environment) FollowQuery(ctx context.Context, after int) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		r := &queryRun{env: e, query: Query{After: after, Detach: true}, yield: yield, watching: true}
		if err := r.watch(ctx); err != nil && !r.left {
			yield(runnerscripts.Event{}, err)
		}
	}
}

func (r *queryRun) watch(ctx context.Context) error {
	e := r.env
	ctx, leave, err := e.enterAlone(ctx)
	if err != nil {
		return err
	}
	defer leave()
	last, err := e.lastPrompt(ctx)
	if err != nil {
		return err
	}
	far, err := e.progressOf(ctx, last)
	if err != nil {
		return fmt.Errorf("follow the query: %w", err)
	}
	p, err := e.reattach(ctx, last, last.Offset)
	if err != nil {
		return fmt.Errorf("follow the query: %w", err)
	}
	r.query.ID = last.QueryID
	e.mu.Lock()
	own := e.agent
	e.agent = p
	e.mu.Unlock()
	r.begin()
	r.continueQuery(last, far)
	ctx, withdraw := context.WithCancel(ctx)
	err = r.follow(ctx, p)
	cause := context.Cause(ctx)
	withdraw()
	r.asks.Wait()
	e.setQuery(nil)
	if r.ended && !r.seen {
		r.noteActivity()
	}
	p.leave()
	e.forget(p)
	e.mu.Lock()
	e.agent = own
	e.mu.Unlock()
	if err != nil && !r.ended && cause == nil {
		err = r.fail(ctx, err)
	}
	return err
}

// continueQuery makes the run continue a query that was begun before.
func (r *queryRun) continueQuery(at queryRecord, far progress) {
	r.seen, r.began, r.index = at.Seen, at.Time, at.Index
	r.env.mu.Lock()
	defer r.env.mu.Unlock()
	r.active.settled = far.settled
}

// rejoin returns the agent that an earlier program left in the sandbox if the agent may still
// take a prompt, else nil. Only the first call looks. If the agent already has the run's prompt,
// the run continues it, and has is true.
func (r *queryRun) rejoin(ctx context.Context) (p *process, has bool, err error) {
	e := r.env
	e.mu.Lock()
	look := e.left
	e.mu.Unlock()
	if !look || !e.Durable() {
		return nil, false, nil
	}
	last, err := e.lastPrompt(ctx)
	switch {
	case errors.Is(err, ErrNoQuery):
		err = nil
	case err != nil:
	case last.QueryID == r.query.ID:
		p, err = r.recover(ctx, last)
		has = p != nil
	default:
		p, err = e.rejoinAfter(ctx, last)
	}
	if err != nil {
		return nil, false, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.left = false
	e.agent = p
	return p, has, nil
}

// rejoinAfter returns the agent that had another prompt; nil if the agent is gone.
func (e *Environment) rejoinAfter(ctx context.Context, last queryRecord) (*process, error) {
	far, err := e.progressOf(ctx, last)
	var p *process
	if err == nil {
		p, err = e.reattach(ctx, last, far.end)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil, nil // its output is gone, so the agent is gone
	}
	return p, err
}

// recover returns the agent that got the run's prompt from a program that is gone. If the runner
// has not started the query, recover withdraws the prompt: the runner then ends, and the prompt
// goes to the next runner. Only a prompt whose query_started was printed can have reached the
// agent, and a line may still be in transit.
func (r *queryRun) recover(ctx context.Context, last queryRecord) (*process, error) {
	e := r.env
	far, err := e.progressOf(ctx, last)
	if err == nil && far.running != "" && !far.started {
		return nil, fmt.Errorf("%w: the agent in the sandbox works on query %s of another program", ErrBusy, far.running)
	}
	var p *process
	if err == nil {
		p, err = e.reattach(ctx, last, last.Offset)
	}
	if err == nil && !far.started && !far.ended {
		err = p.send(ctx, runnerscripts.Control{Type: runnerscripts.ControlWithdraw, ID: last.QueryID})
		if errors.Is(err, errScriptExited) {
			err = nil // its output says that too
		}
		if err != nil {
			e.release(p)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("go on with query %s: %w", last.QueryID, err)
	}
	r.continueQuery(last, far)
	return p, nil
}

// reattach returns the process of a prompt, with its output from a position on. The process may
// have ended. The caller closes it.
func (e *Environment) reattach(ctx context.Context, at queryRecord, from int64) (*process, error) {
	args, err := e.command(ctx, runnerscripts.ExecuteQuery)
	if err != nil {
		return nil, err
	}
	// ctx bounds only this call, not the process, as in start.
	life, forget := context.WithCancel(context.WithoutCancel(ctx))
	starting := context.AfterFunc(ctx, forget)
	defer starting()
	proc, err := primitives.Reattach(life, e.prim, at.Process, primitives.Offset{Stdout: from})
	if err != nil {
		forget()
		return nil, err
	}
	d := newDurable(ctx, proc)
	d.input = at.Input
	if d.feed, err = e.startFeed(life, args[0], at.Input); err != nil {
		d.leave()
		err = errors.Join(err, d.Close())
		forget()
		return nil, err
	}
	p := follow(ctx, runnerscripts.ExecuteQuery, d, from, e.maxLine, e.hide, forget)
	p.adopted = true
	if err := e.adopt(p); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// Unattended reports whether the sandbox has a query whose end no program has seen: the query
// still runs, or it ended after its program was killed. Use [Environment.FollowQuery] to read
// it.
func (e *Environment) Unattended(ctx context.Context) (bool, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	last, err := e.lastPrompt(ctx)
	if errors.Is(err, ErrNoQuery) {
		return false, nil
	}
	return err == nil && !last.Seen, err
}

// Working reports whether a query runs in the sandbox, of this program or another one.
func (e *Environment) Working(ctx context.Context) (bool, error) {
	ctx, leave, err := e.enterAlone(ctx)
	if errors.Is(err, ErrBusy) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer leave()
	return e.working(ctx)
}

// detaches reports whether the query continues without this program: it is detached, the caller
// has left it, and the gateway has not ended it.
func (r *queryRun) detaches(ctx context.Context) bool {
	return r.query.Detach && (r.left || ctx.Err() != nil) && endedBy(ctx) == nil
}

// leaveAgent leaves the agent running for the next program or query.
func (r *queryRun) leaveAgent() {
	r.env.kept.Note(func(a *kept.Record) { a.By, a.Waiting = program.Identity{}, nil })
	r.env.mu.Lock()
	p := r.env.agent
	r.env.left = true
	r.env.mu.Unlock()
	if p != nil {
		p.leave()
		r.env.forget(p)
	}
}

// known reports whether the caller already has an event, and what came with it.
func (r *queryRun) known(ev runnerscripts.Event) bool {
	return ev.Index > 0 && ev.Index <= r.query.After
}

// said returns an event that replaces the last one read.
func (r *queryRun) said(typ runnerscripts.EventType, payload any) runnerscripts.Event {
	ev := r.env.event(typ, r.query.ID, payload)
	ev.Index = r.index
	return ev
}
