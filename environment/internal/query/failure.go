package query

import (
	"context"
	"errors"
	"time"

	"github.com/agentenv-dev/agentenv/environment/internal/configfile"
	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// agentFailed reports the end of a query that failed, as the agent says or because the budget or the gateway ended it, and
// returns its error. ev is the agent's last event.
func (r *run) agentFailed(ctx context.Context, ev runnerscripts.Event, failed runnerscripts.QueryFailed) error {
	changed := r.measure(&failed.Usage)
	cause := endedBy(ctx)
	if cause != nil {
		failed.Code, failed.Message, failed.HTTPStatus, changed = codeOf(cause), cause.Error(), 0, true
	}
	if r.explain(ctx, &failed) {
		changed = true
	} else {
		r.warnOutOfMemory(ctx)
	}
	if changed {
		ev = r.said(runnerscripts.TypeQueryFailed, failed)
	}
	r.end(ev)
	return &runnerscripts.QueryError{QueryID: r.query.ID, Failure: failed, Err: cause}
}

// endedBy returns why the budget or the gateway ended a query; nil if they did not.
func endedBy(ctx context.Context) error {
	cause := context.Cause(ctx)
	limit, missing := (*gateway.BudgetError)(nil), (*gateway.NoMatchError)(nil)
	if errors.As(cause, &limit) || errors.As(cause, &missing) || errors.Is(cause, gateway.ErrConfig) {
		return cause
	}
	return nil
}

// codeOf returns the failure code of a query that the gateway ended.
func codeOf(cause error) runnerscripts.FailureCode {
	limit, ok := errors.AsType[*gateway.BudgetError](cause)
	switch {
	case !ok:
		return runnerscripts.FailInvalidRequest
	case limit.Limit == "time":
		return runnerscripts.FailTimeout
	}
	return runnerscripts.FailBudget
}

// processEnded returns the error of a process whose output ended while the query was running: errAgain if it cannot have
// seen the prompt, and another process must get it.
func (r *run) processEnded(ctx context.Context, p *script.Process, fresh bool, result *runnerscripts.Result) error {
	cause := ErrNotCompleted
	began := r.active.state.phase == running
	switch {
	case !began:
		cause = ErrNotStarted
	case result != nil && result.OK:
		cause = ErrResultTooSoon
	}
	failure := p.Failure(result, cause)
	ranOut := failure.Status != (primitives.ExitStatus{}) && failure.Status.Reason != primitives.ReasonLost
	if !r.seen && (began || ranOut) {
		r.q.noteSeen(context.WithoutCancel(ctx), p, r.query.ID)
	}
	r.drop(p)
	do, _ := r.q.change(r.active, func(s *state) action { return s.exit(fresh, ctx.Err() == nil && !r.left) })
	if do == again {
		return errAgain
	}
	if err := context.Cause(ctx); err != nil {
		failure.Err = errors.Join(err, failure.Err)
	}
	return r.q.Scripts.Diagnose(ctx, failure)
}

// endWithError ends a query that began and has no end of its own, and returns its error.
func (r *run) endWithError(ctx context.Context, err error) error {
	failed := runnerscripts.QueryFailed{
		Code: runnerscripts.FailAgent, Message: err.Error(),
		DurationMS: time.Since(r.began).Milliseconds(),
	}
	r.measure(&failed.Usage)
	if cause := endedBy(ctx); cause != nil {
		failed.Code, failed.Message = codeOf(cause), cause.Error()
		err = &runnerscripts.QueryError{QueryID: r.query.ID, Failure: failed, Err: errors.Join(cause, err)}
	} else if failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err); ok {
		failed.Code, failed.HTTPStatus, failed.Detail = failure.Code, failure.HTTPStatus, failure.Detail
	} else if errors.Is(err, configfile.ErrInvalid) {
		failed.Code = runnerscripts.FailInvalidRequest
	}
	r.explain(ctx, &failed)
	r.end(r.q.events.New(runnerscripts.TypeQueryFailed, r.query.ID, failed))
	return err
}
