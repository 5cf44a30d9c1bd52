package query

import (
	"context"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// withQuery returns the running query and a context that ends with it and with ctx. ok is false if no
// query runs.
func (q *Queries) withQuery(ctx context.Context) (_ context.Context, a *active, cancel func(), ok bool) {
	q.mu.Lock()
	a = q.query
	ok = a != nil && a.call != nil
	q.mu.Unlock()
	if !ok {
		return nil, nil, nil, false
	}
	both, end := context.WithCancelCause(a.life)
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	return both, a, func() { stop(); end(nil) }, true
}

// Ask asks for permission on behalf of an executor, as the running agent does: the rules decide, or
// the user, within the time for answers. Without a query the request is rejected.
func (q *Queries) Ask(ctx context.Context, req runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
	ctx, a, cancel, ok := q.withQuery(ctx)
	if !ok {
		return req.Reject("No query runs.")
	}
	defer cancel()
	decided := make(chan runnerscripts.PermissionDecision, 1)
	take := func(_ context.Context, _ string, d runnerscripts.PermissionDecision) error {
		decided <- d
		return nil
	}
	ask := q.events.New(runnerscripts.TypePermissionRequest, a.id, req)
	if !a.call(ctx, func(r *run) { r.admit(ctx, ask, take, true) }) {
		return req.Reject("The query has ended.")
	}
	var d runnerscripts.PermissionDecision
	done := runnerscripts.PermissionResolved{ID: req.ID, Reason: runnerscripts.ReasonAnswered}
	select {
	case d = <-decided:
		for _, o := range req.Options {
			if d.Kind == "" && o.OptionID == d.OptionID {
				d.Kind = o.Kind
			}
		}
		done.Kind = d.Kind
	case <-ctx.Done():
		d = req.Reject("The query has ended, or the executor has withdrawn the request.")
		done.Reason = runnerscripts.ReasonCancelled
	}
	a.call(a.life, func(r *run) { //nolint:contextcheck // it must be reported although ctx is done
		r.resolved(q.events.New(runnerscripts.TypePermissionResolved, a.id, done))
	})
	return d
}

// Report reports an event of an executor in the running query. Without a query it is dropped.
func (q *Queries) Report(ctx context.Context, typ runnerscripts.EventType, payload any) {
	ctx, a, cancel, ok := q.withQuery(ctx)
	if !ok {
		return
	}
	defer cancel()
	a.call(ctx, func(r *run) { r.report(q.events.New(typ, a.id, payload)) })
}
