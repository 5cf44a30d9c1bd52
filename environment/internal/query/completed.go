package query

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// agentCompleted reports the end of a query that the agent completed, or its failure. ev is the agent's last event.
func (r *run) agentCompleted(ctx context.Context, ev runnerscripts.Event) error {
	r.warnOutOfMemory(ctx)
	done, err := r.completed(ctx, ev)
	if err != nil {
		return &runnerscripts.ScriptError{Script: runnerscripts.ExecuteQuery, Err: err}
	}
	if endedBy(ctx) != nil {
		return r.agentFailed(ctx, ev, runnerscripts.QueryFailed{DurationMS: done.DurationMS, Usage: done.Usage})
	}
	r.output.end(done.ResultData)
	if failure := r.wrongResult(done); failure != nil {
		failed := runnerscripts.QueryFailed{Code: failure.Code, Message: failure.Message, Detail: failure.Detail, DurationMS: done.DurationMS, Usage: done.Usage}
		return r.agentFailed(ctx, r.said(runnerscripts.TypeQueryFailed, failed), failed)
	}
	changed := r.measure(&done.Usage)
	if r.output.schema != nil && done.StopReason != runnerscripts.StopCancelled {
		done.ResultData, changed = r.output.result, true
	}
	if changed {
		ev = r.said(ev.Type, done)
	}
	r.end(ev)
	return nil
}

// completed checks a query_completed. A runner that is ended together with its sandbox may still
// report that the query was cancelled, which is an error.
func (r *run) completed(ctx context.Context, ev runnerscripts.Event) (done runnerscripts.QueryCompleted, err error) {
	done, err = runnerscripts.Payload[runnerscripts.QueryCompleted](ev)
	switch {
	case err != nil:
		return done, fmt.Errorf("its query_completed is malformed: %w", err)
	case done.StopReason == runnerscripts.StopCancelled && !r.q.Scripts.IsClosed():
		return done, r.q.Scripts.ProbeAlive(ctx)
	}
	return done, nil
}

// wrongResult returns the failure of a query whose result does not match its schema; nil for none.
func (r *run) wrongResult(done runnerscripts.QueryCompleted) *runnerscripts.ScriptFailure {
	if done.StopReason == runnerscripts.StopCancelled {
		return nil
	}
	err := r.output.check()
	if err == nil && r.q.CheckResult != nil {
		err = r.q.CheckResult(done.ResultData)
	}
	if err == nil {
		return nil
	}
	failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	if !ok {
		failure = &runnerscripts.ScriptFailure{Code: runnerscripts.FailOutput, Message: err.Error()}
	}
	switch done.StopReason {
	case runnerscripts.StopMaxTokens, runnerscripts.StopMaxRequests, runnerscripts.StopRefusal:
		failure.Message = fmt.Sprintf("the agent stopped early, with %s: %s", done.StopReason, failure.Message)
	}
	return failure
}
