package script

import (
	"context"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// question is a pending permission request.
type question struct {
	tool   tool
	answer chan answer // buffers one answer
}

type answer struct {
	kind     runnerscripts.PermissionKind
	decision runnerscripts.PermissionDecision
	tool     tool // with the updated input
}

// options returns the possible answers.
func options() []runnerscripts.PermissionOption {
	return []runnerscripts.PermissionOption{
		{OptionID: "allow_once", Name: "Allow", Kind: runnerscripts.AllowOnce},
		{OptionID: "allow_always", Name: "Allow always", Kind: runnerscripts.AllowAlways},
		{OptionID: "reject_once", Name: "Reject", Kind: runnerscripts.RejectOnce},
		{OptionID: "reject_always", Name: "Reject always", Kind: runnerscripts.RejectAlways},
	}
}

// ask asks whether a tool may be used, unless the mode or an earlier answer decides.
func (t *turn) ask(ctx context.Context, id string, tl tool) (answer, error) {
	c := t.c
	c.mu.Lock()
	kind, known := c.always[tl.name()]
	if c.mode == modeBypass || c.mode == modeAcceptEdits && tl.name() == toolWrite {
		kind, known = runnerscripts.AllowOnce, true
	}
	if known {
		c.mu.Unlock()
		return answer{kind: kind, tool: tl}, nil
	}
	request := id + "-permission"
	q := &question{tool: tl, answer: make(chan answer, 1)}
	c.waiting[request] = q // before the request is emitted, so that no answer comes too early
	c.mu.Unlock()
	call := tl.call(id)
	call.Status = runnerscripts.ToolPending
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypePermissionRequest, runnerscripts.PermissionRequest{
		ID: request, ToolCall: call, Options: options(),
	})
	resolved := runnerscripts.PermissionResolved{ID: request}
	var a answer
	var err error
	select {
	case a = <-q.answer:
		resolved.Kind, resolved.Reason = a.kind, runnerscripts.ReasonAnswered
	case <-ctx.Done():
		err = context.Cause(ctx)
		resolved.Reason = runnerscripts.ReasonCancelled
		c.mu.Lock()
		delete(c.waiting, request)
		c.mu.Unlock()
	}
	c.out.Emit(runnerscripts.MainConversation, runnerscripts.TypePermissionResolved, resolved)
	return a, err
}

// Respond answers a permission request.
func (c *conversation) Respond(_ context.Context, id string, d runnerscripts.PermissionDecision) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, ok := c.waiting[id]
	if !ok {
		return invalid("answer a permission request that waits: %q does not (any more)", id)
	}
	kind, ok := chosen(d)
	if !ok {
		return invalid("choose one of the options of permission request %q: it has neither option %q nor kind %q", id, d.OptionID, d.Kind)
	}
	a := answer{kind: kind, decision: d, tool: q.tool}
	if len(d.UpdatedInput) > 0 {
		if !kind.Allows() {
			return invalid("leave updated_input out of the answer to %q: it rejects the call", id)
		}
		updated, err := q.tool.withInput(d.UpdatedInput)
		if err != nil {
			return invalid("correct updated_input in the answer to %q: %v", id, err)
		}
		a.tool = updated
	}
	if kind == runnerscripts.AllowAlways || kind == runnerscripts.RejectAlways {
		c.always[q.tool.name()] = kind
	}
	delete(c.waiting, id)
	q.answer <- a
	return nil
}

func chosen(d runnerscripts.PermissionDecision) (runnerscripts.PermissionKind, bool) {
	for _, o := range options() {
		if d.OptionID == o.OptionID || d.OptionID == "" && d.Kind == o.Kind {
			return o.Kind, true
		}
	}
	return "", false
}

// rejection returns the end of a tool call after a rejecting answer.
func rejection(a answer) runnerscripts.ToolCall {
	msg := "rejected"
	if a.decision.Message != "" {
		msg += ": " + a.decision.Message
	}
	return failed(msg)
}
