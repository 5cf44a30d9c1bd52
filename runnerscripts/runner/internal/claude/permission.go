package claude

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// question is a pending permission request.
type question struct {
	request  canUseTool
	conv     string
	options  []runnerscripts.PermissionOption
	onAlways []permissionUpdate // what "allow always" changes
}

// newQuestion returns a question with its options.
func newQuestion(conv string, r canUseTool) question {
	q := question{request: r, conv: conv, onAlways: sessionRules(r.Suggestions)}
	q.options = append(q.options, runnerscripts.PermissionOption{
		OptionID: "allow", Name: "Allow", Kind: runnerscripts.AllowOnce,
	})
	if len(q.onAlways) > 0 {
		q.options = append(q.options, runnerscripts.PermissionOption{
			OptionID: "allow_always", Name: alwaysName(q.onAlways), Kind: runnerscripts.AllowAlways,
		})
	}
	q.options = append(q.options, runnerscripts.PermissionOption{
		OptionID: "reject", Name: "Reject", Kind: runnerscripts.RejectOnce,
	})
	return q
}

// sessionRules returns the suggested changes that implement "always": the suggested rules, else
// all suggestions. They apply to the session, although the program would store them in the
// workspace.
func sessionRules(suggested []permissionUpdate) []permissionUpdate {
	isRule := func(u permissionUpdate) bool { return u.kind() == "addRules" }
	anyRule := slices.ContainsFunc(suggested, isRule)
	var list []permissionUpdate
	for _, s := range suggested {
		if anyRule && !isRule(s) {
			continue
		}
		u := permissionUpdate{}
		for k, v := range s {
			u[k] = v
		}
		u["destination"] = json.RawMessage(`"session"`)
		list = append(list, u)
	}
	return list
}

// alwaysName describes what "always" allows.
func alwaysName(updates []permissionUpdate) string {
	var parts []string
	for _, u := range updates {
		var rules []struct {
			ToolName    string `json:"toolName"`
			RuleContent string `json:"ruleContent"`
		}
		var mode string
		_ = json.Unmarshal(u["rules"], &rules)
		_ = json.Unmarshal(u["mode"], &mode)
		for _, r := range rules {
			if r.RuleContent == "" {
				parts = append(parts, r.ToolName)
			} else {
				parts = append(parts, fmt.Sprintf("%s(%s)", r.ToolName, r.RuleContent))
			}
		}
		if mode != "" {
			parts = append(parts, "mode "+mode)
		}
	}
	if len(parts) == 0 {
		return "Allow for this session"
	}
	return "Allow for this session: " + strings.Join(parts, ", ")
}

// choose returns the option that a decision selects, and checks the decision's other fields.
func (q question) choose(d runnerscripts.PermissionDecision) (runnerscripts.PermissionOption, error) {
	o, err := agent.Choose(q.options, d)
	if err != nil {
		return o, err
	}
	if len(d.UpdatedInput) > 0 && !isObject(d.UpdatedInput) {
		return o, agent.Invalid("give updated_input as the tool's whole input, a JSON object")
	}
	return o, nil
}

// result returns the answer in the program's format.
func (q question) result(o runnerscripts.PermissionOption, d runnerscripts.PermissionDecision) permissionResult {
	if !o.Kind.Allows() {
		msg := d.Message
		if msg == "" {
			msg = "The user did not allow this."
		}
		return permissionResult{Behavior: "deny", Message: msg, Interrupt: d.Interrupt}
	}
	res := permissionResult{Behavior: "allow", UpdatedInput: q.request.Input}
	if len(d.UpdatedInput) > 0 {
		res.UpdatedInput = d.UpdatedInput
	}
	if o.Kind == runnerscripts.AllowAlways {
		res.UpdatedPermissions = q.onAlways
	}
	return res
}

// ask handles a permission request of the program. It runs on the reader's goroutine.
func (c *conversation) ask(id string, r canUseTool) {
	conv := c.translate.conversationOf(r.ToolUseID)
	call := c.translate.toolCall(r.ToolUseID, r.ToolName, r.Input)
	if reason, refused := c.guard.Refuses(call); refused {
		agent.EmitRefused(c.out, conv, call, reason)
		c.deny(id, reason)
		return
	}
	q := newQuestion(conv, r)
	call.Status = runnerscripts.ToolPending
	c.permissions.Request(conv, runnerscripts.PermissionRequest{ID: id, ToolCall: call, Options: q.options}, q, nil)
}

// deny answers a question without asking the user.
func (c *conversation) deny(id, message string) {
	answer, err := json.Marshal(permissionResult{Behavior: "deny", Message: message})
	if err != nil {
		panic(fmt.Sprintf("two texts are no JSON: %v", err)) // cannot happen
	}
	c.mu.Lock()
	p := c.process
	c.mu.Unlock()
	// A program that has ended does not wait for the answer.
	_ = p.Send(controlLine{Type: "control_response", Response: &controlResponse{
		Subtype: "success", RequestID: id, Response: answer,
	}})
}

// Respond answers a permission request.
func (c *conversation) Respond(_ context.Context, id string, d runnerscripts.PermissionDecision) error {
	q, o, err := c.permissions.Answer(id, func(q question) (runnerscripts.PermissionOption, error) { return q.choose(d) })
	if err != nil {
		return err
	}
	c.mu.Lock()
	if d.Interrupt && !o.Kind.Allows() && c.query != nil {
		c.query.cancelled = true
	}
	p := c.process
	c.mu.Unlock()
	if len(d.UpdatedInput) > 0 {
		// Report the updated input: the transcript does not keep it.
		call := c.translate.toolCall(q.request.ToolUseID, q.request.ToolName, d.UpdatedInput)
		c.out.Emit(q.conv, runnerscripts.TypeToolCallUpdate, call)
	}
	answer, err := json.Marshal(q.result(o, d))
	if err != nil {
		return agent.Invalid("give updated_input as JSON: %v", err)
	}
	return p.Send(controlLine{Type: "control_response", Response: &controlResponse{
		Subtype: "success", RequestID: id, Response: answer,
	}})
}
