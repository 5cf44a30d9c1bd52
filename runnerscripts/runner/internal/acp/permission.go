package acp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// question is a permission request that waits for its answer.
type question struct {
	options []runnerscripts.PermissionOption
	answer  chan acpsdk.RequestPermissionResponse // takes one
}

// permissionRequest is what the agent asks, in the shape of this project's own
// payloads, which is ACP's.
type permissionRequest struct {
	ToolCall runnerscripts.ToolCall           `json:"toolCall"`
	Options  []runnerscripts.PermissionOption `json:"options"`
}

// requested answers a request of the agent. Each runs on a goroutine of its own.
func (c *conversation) requested(ctx context.Context, method string, params json.RawMessage) (any, *acpsdk.RequestError) {
	if method != acpsdk.ClientMethodSessionRequestPermission {
		c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level: "warn", Message: fmt.Sprintf("%s asked for something that is not supported: %s", c.cfg.Program, method),
			Data: agent.RawLine(params),
		})
		return nil, acpsdk.NewMethodNotFound(method)
	}
	var r permissionRequest
	if err := json.Unmarshal(params, &r); err != nil {
		c.unreadable(params, err)
		return nil, acpsdk.NewInvalidParams(err.Error())
	}
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return cancelled(), nil
	}
	c.asking.Add(1)
	c.mu.Unlock()
	defer c.asking.Done()
	return c.permission(ctx, r), nil
}

func cancelled() acpsdk.RequestPermissionResponse {
	return acpsdk.RequestPermissionResponse{Outcome: acpsdk.NewRequestPermissionOutcomeCancelled()}
}

// permission answers by the mode, or asks and waits.
func (c *conversation) permission(ctx context.Context, r permissionRequest) acpsdk.RequestPermissionResponse {
	if o, ok := c.allowed(r); ok {
		r.ToolCall.Status = runnerscripts.ToolInProgress
		c.call(r.ToolCall)
		return selected(o)
	}
	r.ToolCall.Status = runnerscripts.ToolPending
	c.call(r.ToolCall)
	q := &question{options: r.Options, answer: make(chan acpsdk.RequestPermissionResponse, 1)}
	c.mu.Lock()
	if c.over || c.query == nil || c.query.cancelled {
		c.mu.Unlock()
		return cancelled()
	}
	c.asked++
	id := fmt.Sprintf("permission-%d", c.asked)
	c.questions[id] = q
	c.mu.Unlock()
	c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypePermissionRequest, runnerscripts.PermissionRequest{
		ID: id, ToolCall: r.ToolCall, Options: r.Options,
	})
	select {
	case answer := <-q.answer:
		return answer
	case <-ctx.Done(): // the agent has withdrawn it, or ended
		c.withdraw(id)
		return cancelled()
	}
}

// call reports the tool call of a permission request, which some agents do not
// tell otherwise.
func (c *conversation) call(call runnerscripts.ToolCall) {
	raw, err := json.Marshal(call)
	if err != nil {
		panic(fmt.Sprintf("a tool call that was JSON is none: %v", err)) // cannot happen: it came from JSON
	}
	updates := []Update{{Kind: string(runnerscripts.TypeToolCall), Raw: raw}}
	if c.cfg.Translate != nil {
		updates = c.cfg.Translate(updates[0])
	}
	for _, u := range updates {
		if err := c.translate.update(u); err != nil {
			c.unreadable(u.Raw, err)
		}
	}
}

// allowed reports whether the mode that the driver keeps allows a tool call, and
// by which option.
func (c *conversation) allowed(r permissionRequest) (runnerscripts.PermissionOption, bool) {
	c.mu.Lock()
	mode := c.mode
	c.mu.Unlock()
	if _, own := c.cfg.Modes[mode]; !own || !c.cfg.Allows(mode, r.ToolCall) {
		return runnerscripts.PermissionOption{}, false
	}
	i := slices.IndexFunc(r.Options, func(o runnerscripts.PermissionOption) bool {
		return o.Kind == runnerscripts.AllowOnce
	})
	if i < 0 {
		return runnerscripts.PermissionOption{}, false
	}
	return r.Options[i], true
}

func selected(o runnerscripts.PermissionOption) acpsdk.RequestPermissionResponse {
	return acpsdk.RequestPermissionResponse{
		Outcome: acpsdk.NewRequestPermissionOutcomeSelected(acpsdk.PermissionOptionId(o.OptionID)),
	}
}

// Respond answers a permission request.
func (c *conversation) Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	if len(d.UpdatedInput) > 0 {
		return agent.Unsupported("leave updated_input out: ACP has no way to change what %s is going to do", c.cfg.Program)
	}
	c.mu.Lock()
	q, ok := c.questions[id]
	if !ok {
		c.mu.Unlock()
		return agent.NotWaiting(id)
	}
	o, err := agent.Choose(q.options, d)
	if err != nil {
		c.mu.Unlock()
		return err
	}
	delete(c.questions, id)
	c.mu.Unlock()
	c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypePermissionResolved, runnerscripts.PermissionResolved{
		ID: id, Kind: o.Kind, Reason: "answered",
	})
	answer := selected(o)
	if d.Message != "" {
		answer.Meta = map[string]any{"message": d.Message} // ACP has no other place for it
	}
	q.answer <- answer
	if d.Interrupt && !o.Kind.Allows() {
		return c.Interrupt(ctx)
	}
	return nil
}

// withdraw ends a question that nobody needs to answer any more.
func (c *conversation) withdraw(id string) {
	c.mu.Lock()
	q, ok := c.questions[id]
	delete(c.questions, id)
	c.mu.Unlock()
	if !ok {
		return
	}
	q.answer <- cancelled()
	c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypePermissionResolved,
		runnerscripts.PermissionResolved{ID: id, Reason: "cancelled"})
}

// withdrawAll ends the questions of a query that ends.
func (c *conversation) withdrawAll() {
	c.mu.Lock()
	var ids []string
	for id := range c.questions {
		ids = append(ids, id)
	}
	c.mu.Unlock()
	for _, id := range ids {
		c.withdraw(id)
	}
}
