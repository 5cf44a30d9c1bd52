package query

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/gateway"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// optionMore is the ID of the option that lets the query use more.
const optionMore = "more"

// askForMore asks the user, with a permission request, whether a used-up limit may be used once
// more, and waits for the answer. The agent's model call waits too.
func (r *run) askForMore(ctx context.Context, limit *gateway.BudgetError) bool {
	id := "budget-" + uuid.NewString()
	kind := make(chan runnerscripts.PermissionKind, 1)
	take := func(_ context.Context, _ string, d runnerscripts.PermissionDecision) error {
		switch {
		case d.Kind != "":
			kind <- d.Kind
		case d.OptionID == optionMore:
			kind <- runnerscripts.AllowOnce
		default:
			kind <- runnerscripts.RejectOnce
		}
		return nil
	}
	ask := r.q.events.New(runnerscripts.TypePermissionRequest, r.query.ID, runnerscripts.PermissionRequest{
		ID:       id,
		ToolCall: runnerscripts.ToolCall{ToolCallID: id, Name: "budget", Kind: runnerscripts.ToolOther, Title: fmt.Sprintf("The %s's budget of %s is used up", limit.Scope, limit.Most)},
		Options: []runnerscripts.PermissionOption{
			{OptionID: optionMore, Name: fmt.Sprintf("Allow another %s", limit.Most), Kind: runnerscripts.AllowOnce},
			{OptionID: "stop", Name: "Stop", Kind: runnerscripts.RejectOnce},
		},
	})
	r.callInReporter(ctx, func() { r.admit(ctx, ask, take, true) })
	select {
	case k := <-kind:
		r.callInReporter(ctx, func() {
			r.resolved(r.q.events.New(runnerscripts.TypePermissionResolved, r.query.ID, runnerscripts.PermissionResolved{ID: id, Kind: k, Reason: runnerscripts.ReasonAnswered}))
		})
		return k.Allows()
	case <-ctx.Done():
		return false
	}
}
