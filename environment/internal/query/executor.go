package query

import (
	"context"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// followTime is how long an executor in a kept sandbox waits until its query is followed, which takes a moment after an attach. The
// relay in the sandbox waits as long for the attach.
const followTime = time.Minute

// withQuery returns the running query and a context that ends with it and with ctx. ok is false if no
// query runs, or none is followed within followTime.
func (q *Queries) withQuery(ctx context.Context) (_ context.Context, a *active, cancel func(), ok bool) {
	a, admitted := q.admitting()
	if a == nil && q.leftOver(ctx) {
		late := time.NewTimer(followTime)
		defer late.Stop()
		select {
		case <-admitted:
			a, _ = q.admitting()
		case <-late.C:
		case <-ctx.Done():
		}
	}
	if a == nil {
		return nil, nil, nil, false
	}
	both, end := context.WithCancelCause(a.life)
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	return both, a, func() { stop(); end(nil) }, true
}

// leftOver reports whether a query runs that no program follows.
func (q *Queries) leftOver(ctx context.Context) bool {
	if !q.Durable() {
		return false
	}
	unattended, err := q.Unattended(ctx)
	return err == nil && unattended
}

// admitting returns the query that admits executors; if it is nil, the channel is closed when the next one does.
func (q *Queries) admitting() (*active, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if a := q.query; a != nil && a.call != nil {
		return a, nil
	}
	return nil, q.admitted
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
