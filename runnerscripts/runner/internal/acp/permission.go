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
	call    runnerscripts.ToolCall
	options []runnerscripts.PermissionOption
	answer  chan acpsdk.RequestPermissionResponse // takes one
	// told says that its end was reported, and the answer, a refusal, follows
	// the interrupt.
	told bool
	why  string // it is refused
}

// permissionRequest is what the agent asks, in the shape of this project's own
// payloads, which is ACP's.
type permissionRequest struct {
	ToolCall json.RawMessage                  `json:"toolCall"` // a runnerscripts.ToolCall
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
	err := json.Unmarshal(params, &r)
	var call runnerscripts.ToolCall
	if err == nil {
		call, err = c.toolCall(r.ToolCall)
	}
	if err != nil {
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
	return c.permission(ctx, call, r.Options), nil
}

// toolCall is the tool call of a permission request, with what it shows.
func (c *conversation) toolCall(raw json.RawMessage) (runnerscripts.ToolCall, error) {
	var said runnerscripts.ToolCall
	if err := json.Unmarshal(raw, &said); err != nil {
		return said, err
	}
	u := Update{Kind: string(runnerscripts.TypeToolCall), Raw: raw}
	if c.cfg.Translate != nil {
		u = c.cfg.Translate(u)
	}
	var call runnerscripts.ToolCall
	if err := json.Unmarshal(u.Raw, &call); err != nil {
		return said, err
	}
	if len(call.Content) == 0 {
		call.Content = said.Content
	}
	return call, nil
}

func cancelled() acpsdk.RequestPermissionResponse {
	return acpsdk.RequestPermissionResponse{Outcome: acpsdk.NewRequestPermissionOutcomeCancelled()}
}

// permission answers by the guard or the mode, or asks and waits. Some agents do
// not tell of the tool call otherwise.
func (c *conversation) permission(ctx context.Context, call runnerscripts.ToolCall, options []runnerscripts.PermissionOption) acpsdk.RequestPermissionResponse {
	if reason, refused := c.cfg.Guard.Refuses(c.translate.wholeCall(call)); refused {
		return c.refuse(call, options, reason)
	}
	if o, ok := c.allowed(call, options); ok {
		call.Status = runnerscripts.ToolInProgress
		c.translate.asked(call)
		return selected(o)
	}
	call.Status = runnerscripts.ToolPending
	c.translate.asked(call)
	q := &question{call: c.translate.wholeCall(call), options: options, answer: make(chan acpsdk.RequestPermissionResponse, 1)}
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
		ID: id, ToolCall: call, Options: options,
	})
	select {
	case answer := <-q.answer:
		return answer
	case <-ctx.Done(): // the agent has withdrawn it, or ended
		c.withdraw(id)
		return cancelled()
	}
}

// refuse rejects a tool call without asking.
func (c *conversation) refuse(call runnerscripts.ToolCall, options []runnerscripts.PermissionOption, reason string) acpsdk.RequestPermissionResponse {
	call.Status = runnerscripts.ToolPending
	c.translate.asked(call)
	agent.EmitRefused(c.cfg.Out, runnerscripts.MainConversation, c.translate.wholeCall(call), reason)
	o, ok := optionOf(options, runnerscripts.RejectOnce)
	if !ok {
		return cancelled()
	}
	return withMessage(selected(o), reason)
}

// optionOf is the first option of a kind.
func optionOf(options []runnerscripts.PermissionOption, kind runnerscripts.PermissionKind) (runnerscripts.PermissionOption, bool) {
	i := slices.IndexFunc(options, func(o runnerscripts.PermissionOption) bool { return o.Kind == kind })
	if i < 0 {
		return runnerscripts.PermissionOption{}, false
	}
	return options[i], true
}

// withMessage adds words for the agent, for which ACP has no other place.
func withMessage(answer acpsdk.RequestPermissionResponse, message string) acpsdk.RequestPermissionResponse {
	if message != "" {
		answer.Meta = map[string]any{"message": message}
	}
	return answer
}

// allowed reports whether the mode or an earlier decision that the driver keeps allows a
// tool call, and by which option.
func (c *conversation) allowed(call runnerscripts.ToolCall, options []runnerscripts.PermissionOption) (runnerscripts.PermissionOption, bool) {
	call = c.translate.wholeCall(call)
	c.mu.Lock()
	mode, always := c.mode, c.always[call.Kind]
	c.mu.Unlock()
	if _, own := c.cfg.Modes[mode]; !always && (!own || !c.cfg.Allows(mode, call)) {
		return runnerscripts.PermissionOption{}, false
	}
	return optionOf(options, runnerscripts.AllowOnce)
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
	c.withdrawing.Lock()
	defer c.withdrawing.Unlock()
	c.mu.Lock()
	q, ok := c.questions[id]
	if !ok || q.told {
		c.mu.Unlock()
		return agent.NotWaiting(id)
	}
	o, err := agent.Choose(q.options, d)
	if err != nil {
		c.mu.Unlock()
		return err
	}
	chosen := o
	if o.Kind == runnerscripts.AllowAlways && c.cfg.KeepsAlways != nil && c.cfg.KeepsAlways(q.call) {
		if once, ok := optionOf(q.options, runnerscripts.AllowOnce); ok {
			chosen, c.always[q.call.Kind] = once, true
		}
	}
	stop := d.Interrupt && !o.Kind.Allows()
	if stop {
		// It gets its answer only after the interrupt, when the question is withdrawn:
		// it might end its turn as if it had not been interrupted.
		q.told, q.why = true, d.Message
		c.interrupt(c.query)
	} else {
		delete(c.questions, id)
	}
	c.mu.Unlock()
	c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypePermissionResolved, runnerscripts.PermissionResolved{
		ID: id, Kind: o.Kind, Reason: "answered",
	})
	if !stop {
		q.answer <- withMessage(selected(chosen), d.Message)
	}
	return nil
}

// withdraw ends a question that needs no answer any more.
func (c *conversation) withdraw(id string) {
	c.withdrawing.Lock()
	defer c.withdrawing.Unlock()
	c.withdrawOne(id)
}

// withdrawOne is withdraw for who holds the lock.
func (c *conversation) withdrawOne(id string) {
	c.mu.Lock()
	q, ok := c.questions[id]
	delete(c.questions, id)
	c.mu.Unlock()
	if !ok {
		return
	}
	q.answer <- withMessage(cancelled(), q.why)
	if !q.told {
		c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypePermissionResolved,
			runnerscripts.PermissionResolved{ID: id, Reason: "cancelled"})
	}
}

// withdrawAll ends the questions of a query that ends. When it returns, the withdrawals
// by the agent's end are reported, too.
func (c *conversation) withdrawAll() {
	c.withdrawing.Lock()
	defer c.withdrawing.Unlock()
	c.mu.Lock()
	var ids []string
	for id := range c.questions {
		ids = append(ids, id)
	}
	c.mu.Unlock()
	for _, id := range ids {
		c.withdrawOne(id)
	}
}
