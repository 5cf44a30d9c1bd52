package query

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/internal/audit"
	rules "github.com/agentenv-dev/agentenv/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Hold decides about a tool call in the answer of a model, as about a permission request of the agent. It waits for an
// answer, until ctx is done or the query ends, and returns why the call is refused; empty if it may pass.
func (q *Queries) Hold(ctx context.Context, tool string, input json.RawMessage) (refusal string) {
	q.mu.Lock()
	var hold func(context.Context, string, json.RawMessage) string
	if q.query != nil {
		hold = q.query.hold
	}
	q.mu.Unlock()
	why := "no query runs"
	if hold != nil {
		why = hold(ctx, tool, input)
	}
	if why == "" {
		return ""
	}
	return "The call of " + tool + " was refused. " + why
}

// holdUntil has the calls of the query decided about until the returned function is called.
func (r *run) holdUntil(ctx context.Context) (end func()) {
	set := func(hold func(context.Context, string, json.RawMessage) string) {
		r.q.mu.Lock()
		defer r.q.mu.Unlock()
		r.active.hold = hold
	}
	set(func(calling context.Context, tool string, input json.RawMessage) string {
		calling, cancel := context.WithCancel(calling)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		return r.heldCall(calling, tool, input)
	})
	return func() { set(nil) }
}

// heldCall asks about a call. It returns why the call is refused; empty if it may pass.
func (r *run) heldCall(ctx context.Context, tool string, input json.RawMessage) string {
	if !json.Valid(input) {
		input, _ = json.Marshal(string(input)) // a text does not fail
	}
	id := "call-" + uuid.NewString()
	answer := make(chan runnerscripts.PermissionDecision, 1)
	take := func(_ context.Context, _ string, d runnerscripts.PermissionDecision) error {
		answer <- d
		return nil
	}
	options := []runnerscripts.PermissionOption{
		{OptionID: "allow", Name: "Allow", Kind: runnerscripts.AllowOnce},
		{OptionID: "allow_always", Name: "Allow for this session", Kind: runnerscripts.AllowAlways},
		{OptionID: "reject", Name: "Reject", Kind: runnerscripts.RejectOnce},
	}
	title := tool + " " + audit.Cut(r.q.Names.Subject(rules.Call{Name: tool, Input: input}))
	ask := r.q.events.New(runnerscripts.TypePermissionRequest, r.query.ID, runnerscripts.PermissionRequest{
		ID: id, Options: options, ToolCall: runnerscripts.ToolCall{ToolCallID: id, Name: tool, Kind: runnerscripts.ToolOther, Title: title, RawInput: input},
	})
	r.callInReporter(ctx, func() { r.admit(ctx, ask, take) })
	var d runnerscripts.PermissionDecision
	select {
	case d = <-answer:
	case <-ctx.Done():
		return "The query has ended."
	}
	kind := d.Kind
	for _, o := range options {
		if kind == "" && o.OptionID == d.OptionID {
			kind = o.Kind
		}
	}
	r.callInReporter(ctx, func() {
		r.resolved(r.q.events.New(runnerscripts.TypePermissionResolved, r.query.ID, runnerscripts.PermissionResolved{ID: id, Kind: kind, Reason: runnerscripts.ReasonAnswered}))
	})
	switch {
	case len(d.UpdatedInput) > 0:
		return "Its input cannot be changed here."
	case kind.Allows():
		return ""
	case d.Message == "":
		return "The user does not allow it."
	}
	return d.Message
}
