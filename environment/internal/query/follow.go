package query

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Follow yields the events of the query that runs in the sandbox, whichever program sent its prompt, as
// environment.FollowQuery describes.
func (q *Queries) Follow(ctx context.Context, after int, yield func(runnerscripts.Event, error) bool) {
	r := &run{q: q, query: Query{After: after, Detach: true}, yield: yield, watching: true}
	if err := r.watch(ctx); err != nil && !r.left {
		yield(runnerscripts.Event{}, err)
	}
}

func (r *run) watch(ctx context.Context) error {
	q := r.q
	ctx, leave, err := q.Alone(ctx)
	if err != nil {
		return err
	}
	defer leave()
	last, err := q.lastPrompt(ctx)
	if err != nil {
		return err
	}
	far, err := q.progressOf(ctx, last)
	if err != nil {
		return fmt.Errorf("follow the query: %w", err)
	}
	p, err := q.Scripts.Reattach(ctx, last.Process, last.Input, last.Offset)
	if err != nil {
		return fmt.Errorf("follow the query: %w", err)
	}
	r.query.ID = last.QueryID
	q.mu.Lock()
	own := q.agent
	q.agent = p
	q.mu.Unlock()
	r.begin()
	r.continueQuery(last, far)
	ctx, withdraw := context.WithCancel(ctx)
	r.admitExecutors(ctx)
	err = r.read(ctx, p, true)
	cause := context.Cause(ctx)
	withdraw()
	r.asks.Wait()
	q.setQuery(nil)
	if r.isOver() && !r.seen {
		r.noteEnd()
	}
	q.leave(p)
	q.mu.Lock()
	q.agent = own
	q.mu.Unlock()
	if err != nil && !r.isOver() && cause == nil {
		err = r.endWithError(ctx, err)
	}
	return err
}

// continueQuery makes the run continue a query that was begun before.
func (r *run) continueQuery(at queryRecord, far progress) {
	r.seen, r.began, r.index = at.Seen, at.Time, at.Index
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	r.active.settled = far.settled
}

// rejoin returns the agent that an earlier program left in the sandbox if the agent may still
// take a prompt, else nil. Only the first call looks. If the agent already has the run's prompt,
// the run continues it, and has is true.
func (r *run) rejoin(ctx context.Context) (p *script.Process, has bool, err error) {
	q := r.q
	q.mu.Lock()
	look := q.look
	q.mu.Unlock()
	if !look || !q.Durable() {
		return nil, false, nil
	}
	last, err := q.lastPrompt(ctx)
	switch {
	case errors.Is(err, ErrNone):
		err = nil
	case err != nil:
	case last.QueryID == r.query.ID:
		p, err = r.continueOwn(ctx, last)
		has = p != nil
	default:
		p, err = q.rejoinAfter(ctx, last)
	}
	if err != nil {
		return nil, false, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.look = false
	q.agent = p
	return p, has, nil
}

// rejoinAfter returns the agent that had another prompt; nil if the agent is gone.
func (q *Queries) rejoinAfter(ctx context.Context, last queryRecord) (*script.Process, error) {
	far, err := q.progressOf(ctx, last)
	var p *script.Process
	if err == nil {
		p, err = q.Scripts.Reattach(ctx, last.Process, last.Input, far.end)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil, nil // its output is gone, so the agent is gone
	}
	return p, err
}

// continueOwn returns the agent that got the run's prompt from a program that is gone. If the runner
// has not started the query, continueOwn withdraws the prompt: the runner then ends, and the prompt
// goes to the next runner. Only a prompt whose query_started was printed can have reached the
// agent, and a line may still be in transit.
func (r *run) continueOwn(ctx context.Context, last queryRecord) (*script.Process, error) {
	q := r.q
	far, err := q.progressOf(ctx, last)
	if err == nil && far.running != "" && !far.started {
		return nil, fmt.Errorf("%w: the agent in the sandbox works on query %s of another program", ErrBusy, far.running)
	}
	var p *script.Process
	if err == nil {
		p, err = q.Scripts.Reattach(ctx, last.Process, last.Input, last.Offset)
	}
	if err == nil && !far.started && !far.ended {
		err = p.Send(ctx, runnerscripts.Control{Type: runnerscripts.ControlWithdraw, ID: last.QueryID})
		if errors.Is(err, script.ErrExited) {
			err = nil // its output says that too
		}
		if err != nil {
			q.release(p)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("go on with query %s: %w", last.QueryID, err)
	}
	r.continueQuery(last, far)
	return p, nil
}

// Unattended reports whether the sandbox has a query whose end no program has seen.
func (q *Queries) Unattended(ctx context.Context) (bool, error) {
	ctx, leave, err := q.Scripts.Enter(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	last, err := q.lastPrompt(ctx)
	if errors.Is(err, ErrNone) {
		return false, nil
	}
	return err == nil && !last.Seen, err
}

// GoesOn reports whether the latest prompt in the sandbox has an ID, and no program has seen its end.
func (q *Queries) GoesOn(ctx context.Context, id string) (bool, error) {
	last, err := q.lastPrompt(ctx)
	if errors.Is(err, ErrNone) {
		return false, nil
	}
	return err == nil && last.QueryID == id && !last.Seen, err
}

// Working reports whether a query of another program runs in the sandbox. The caller prevents queries of this one.
func (q *Queries) Working(ctx context.Context) (bool, error) {
	_, running, err := q.running(ctx)
	return running, err
}

// running returns how far the latest query is, and whether it runs.
func (q *Queries) running(ctx context.Context) (far progress, running bool, err error) {
	last, err := q.lastPrompt(ctx)
	if errors.Is(err, ErrNone) || err == nil && last.Seen {
		return far, false, nil
	}
	if err != nil {
		return far, false, err
	}
	far, err = q.progressOf(ctx, last)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid):
		return far, false, nil // its output is gone, so the query is gone
	case err != nil || far.ended:
		return far, false, err
	}
	proc, err := primitives.Reattach(ctx, q.Scripts.Sandbox, last.Process, primitives.Offset{Stdout: last.Offset, NoFollow: true})
	if err != nil {
		return far, false, err
	}
	alive := !script.Exits(ctx, proc, primitives.DefaultGrace)
	return far, alive, errors.Join(context.Cause(ctx), proc.Close())
}
