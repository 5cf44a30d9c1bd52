package acp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	acpsdk "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// question is a pending permission request.
type question struct {
	peer      *jsonrpc.Peer
	requestID json.RawMessage
	call      runnerscripts.ToolCall
	options   []runnerscripts.PermissionOption
	why       string // why it is refused
}

// permissionRequest is the agent's request. ACP's form is also that of this project's payloads.
type permissionRequest struct {
	ToolCall json.RawMessage                  `json:"toolCall"` // a runnerscripts.ToolCall
	Options  []runnerscripts.PermissionOption `json:"options"`
}

// requested handles a request of the agent.
func (c *conversation) requested(p *jsonrpc.Peer, m jsonrpc.Message) {
	q := &question{peer: p, requestID: bytes.Clone(m.ID)}
	if m.Method != acpsdk.ClientMethodSessionRequestPermission {
		c.cfg.Out.Emit(runnerscripts.MainConversation, runnerscripts.TypeLog, runnerscripts.Log{
			Level: "warn", Message: fmt.Sprintf("%s asked for something that is not supported: %s", c.cfg.Program, m.Method),
			Data: agent.RawLine(m.Params),
		})
		c.reply(func() error { return p.Refuse(q.requestID, jsonrpc.MethodNotFound, "Method not found: "+m.Method) })
		return
	}
	var r permissionRequest
	err := json.Unmarshal(m.Params, &r)
	if err == nil {
		q.call, err = c.toolCall(r.ToolCall)
	}
	if err != nil {
		c.unreadable(m.Params, err)
		c.reply(func() error { return p.Refuse(q.requestID, jsonrpc.InvalidParams, err.Error()) })
		return
	}
	q.options = r.Options
	c.permission(q)
}

// reply sends an answer in the background: the program may not read its input.
func (c *conversation) reply(send func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over { // otherwise the program is ending
		c.sending.Go(func() { _ = send() }) // if the program has ended, Done says so
	}
}

// answer answers a question.
func (c *conversation) answer(q *question, answer acpsdk.RequestPermissionResponse) {
	c.reply(func() error { return q.peer.Answer(q.requestID, answer) })
}

// withdrawn handles the agent's withdrawal of a request.
func (c *conversation) withdrawn(p *jsonrpc.Peer, params json.RawMessage) {
	var r struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &r) != nil {
		c.unreadable(params, errors.New("it names no request"))
		return
	}
	for _, q := range c.permissions.Withdraw(func(_ string, q *question) bool {
		return q.peer == p && string(q.requestID) == string(r.RequestID)
	}) {
		c.answer(q, cancelled())
	}
}

// toolCall returns the tool call of a permission request, with the content that the request
// shows.
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

// permission answers a request by the guard or the mode, or asks the user. It reports the tool
// call, since some agents report it only here.
func (c *conversation) permission(q *question) {
	call := q.call
	if reason, refused := c.cfg.Guard.Refuses(c.translate.wholeCall(call)); refused {
		c.answer(q, c.refuse(call, q.options, reason))
		return
	}
	if o, ok := c.allowed(call, q.options); ok {
		call.Status = runnerscripts.ToolInProgress
		c.translate.asked(call)
		c.answer(q, selected(o))
		return
	}
	call.Status = runnerscripts.ToolPending
	c.translate.asked(call)
	q.call = c.translate.wholeCall(call)
	id := fmt.Sprintf("permission-%d", c.asked.Add(1))
	r := runnerscripts.PermissionRequest{ID: id, ToolCall: call, Options: q.options}
	if !c.permissions.Request(runnerscripts.MainConversation, r, q, c.asks) {
		c.answer(q, cancelled())
	}
}

// asks reports whether a query runs that may ask the user.
func (c *conversation) asks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.over && c.query != nil && !c.query.cancelled
}

// refuse rejects a tool call without asking the user.
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

// optionOf returns the first option of a kind.
func optionOf(options []runnerscripts.PermissionOption, kind runnerscripts.PermissionKind) (runnerscripts.PermissionOption, bool) {
	i := slices.IndexFunc(options, func(o runnerscripts.PermissionOption) bool { return o.Kind == kind })
	if i < 0 {
		return runnerscripts.PermissionOption{}, false
	}
	return options[i], true
}

// withMessage adds a message to the agent, which ACP does not provide for.
func withMessage(answer acpsdk.RequestPermissionResponse, message string) acpsdk.RequestPermissionResponse {
	if message != "" {
		answer.Meta = map[string]any{"message": message}
	}
	return answer
}

// allowed reports whether the mode, or an earlier "always" that the driver remembers, allows a
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
func (c *conversation) Respond(_ context.Context, id string, d runnerscripts.PermissionDecision) error {
	if len(d.UpdatedInput) > 0 {
		return agent.Unsupported("leave updated_input out: ACP has no way to change what %s is going to do", c.cfg.Program)
	}
	q, o, err := c.permissions.Answer(id, func(q *question) (runnerscripts.PermissionOption, error) {
		return agent.Choose(q.options, d)
	})
	if err != nil {
		return err
	}
	if chosen, answers := c.decided(q, o, d); answers {
		c.answer(q, withMessage(selected(chosen), d.Message))
	}
	return nil
}

// decided returns the option to send for the user's choice, unless an interrupt must be sent
// first.
func (c *conversation) decided(q *question, o runnerscripts.PermissionOption, d runnerscripts.PermissionDecision) (chosen runnerscripts.PermissionOption, answers bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	chosen = o
	if o.Kind == runnerscripts.AllowAlways && c.cfg.KeepsAlways != nil && c.cfg.KeepsAlways(q.call) {
		if once, ok := optionOf(q.options, runnerscripts.AllowOnce); ok {
			chosen, c.always[q.call.Kind] = once, true
		}
	}
	if d.Interrupt && !o.Kind.Allows() && c.query != nil {
		// The answer must follow the interrupt, with the withdrawn requests: otherwise the
		// agent might end its turn as if it were not stopped.
		q.why = d.Message
		c.stopped = append(c.stopped, q)
		c.interrupt(c.query)
		return o, false
	}
	return chosen, true
}

// withdrawAll withdraws the requests of an ending query, including those whose rejection ends
// it.
func (c *conversation) withdrawAll() {
	list := c.permissions.WithdrawAll()
	c.mu.Lock()
	list = append(list, c.stopped...)
	c.stopped = nil
	c.mu.Unlock()
	for _, q := range list {
		c.answer(q, withMessage(cancelled(), q.why))
	}
}
