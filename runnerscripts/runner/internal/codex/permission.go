package codex

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

// question is a pending request of the program.
type question struct {
	peer      *jsonrpc.Peer
	requestID json.RawMessage
	method    string
	conv      string
	options   []runnerscripts.PermissionOption
	params    approval
}

// approval has the fields of the requests for a permission.
type approval struct {
	note
	ItemID         string          `json:"itemId"`
	Command        string          `json:"command"`
	Cwd            string          `json:"cwd"`
	CommandActions []action        `json:"commandActions"`
	Reason         string          `json:"reason"`
	ServerName     string          `json:"serverName"` // of an MCP server
	Message        string          `json:"message"`
	Meta           elicited        `json:"_meta"`
	Questions      json.RawMessage `json:"questions"`
}

// elicited says why an MCP server asks: because its tool is called, or for another reason.
type elicited struct {
	Kind string `json:"codex_approval_kind"`
	Tool string `json:"tool_name"`
}

// elicitedCall is the kind of a request to call a tool of the server.
const elicitedCall = "mcp_tool_call"

// userQuestion is a question of the agent to the user.
type userQuestion struct {
	Question string `json:"question"`
}

// The requests of the program that may be passed on to the user.
const (
	askCommand = "item/commandExecution/requestApproval"
	askFiles   = "item/fileChange/requestApproval"
	askMCP     = "mcpServer/elicitation/request"
	askUser    = "item/tool/requestUserInput"
)

// The IDs of the permission options.
const (
	optionAllow   = "allow"
	optionSession = "allow_session"
	optionReject  = "reject"
)

func questionOptions(always bool) []runnerscripts.PermissionOption {
	list := []runnerscripts.PermissionOption{{OptionID: optionAllow, Name: "Allow", Kind: runnerscripts.AllowOnce}}
	if always {
		list = append(list, runnerscripts.PermissionOption{
			OptionID: optionSession, Name: "Allow for this session", Kind: runnerscripts.AllowAlways,
		})
	}
	return append(list, runnerscripts.PermissionOption{OptionID: optionReject, Name: "Reject", Kind: runnerscripts.RejectOnce})
}

// handleRequest handles a request of the program. It runs on the reader's goroutine.
func (c *conversation) handleRequest(p *jsonrpc.Peer, m jsonrpc.Message) error {
	var a approval
	switch m.Method {
	case askCommand, askFiles, askMCP, askUser:
		if err := json.Unmarshal(m.Params, &a); err != nil {
			_ = p.Refuse(m.ID, jsonrpc.MethodNotFound, "this client does not answer "+m.Method)
			return err
		}
	default:
		// Reply, or the program would wait forever.
		_ = p.Refuse(m.ID, jsonrpc.MethodNotFound, "this client does not answer "+m.Method)
		c.log("warn", "Codex asked for something that is not supported: "+m.Method, bytes.Clone(m.Params))
		return nil
	}
	q := question{
		peer: p, requestID: bytes.Clone(m.ID), method: m.Method, conv: c.conv(a.note),
		options: questionOptions(m.Method != askUser && (m.Method != askMCP || a.Meta.Kind == elicitedCall)),
		params:  a,
	}
	call := c.callAsked(q, m.Params)
	if c.answered(q, call) {
		return nil
	}
	// Request IDs are unique only within a process.
	id := fmt.Sprintf("%s-%s", call.ToolCallID, m.ID)
	c.permissions.Request(q.conv, runnerscripts.PermissionRequest{ID: id, ToolCall: call, Options: q.options}, q, nil)
	return nil
}

// answered answers a request without asking the user: it rejects changes of files outside the
// workspace, and allows what the profile allows.
func (c *conversation) answered(q question, call runnerscripts.ToolCall) bool {
	if q.method == askFiles {
		if reason, refuses := c.guard.Refuses(call); refuses {
			agent.EmitRefused(c.out, q.conv, call, reason)
			q.steer(reason)
			// An error means that the program has ended, which Done reports.
			_ = q.peer.Answer(q.requestID, decision("decline"))
			return true
		}
	}
	if c.tools.accepted[q.method] {
		_ = q.peer.Answer(q.requestID, decision("accept"))
		return true
	}
	return false
}

func decision(d string) map[string]any { return map[string]any{"decision": d} }

// steer sends the reason of a rejection as a user message, because a rejection has no message. Call
// steer before the rejection, or the model would continue without the reason.
func (q question) steer(text string) {
	_, _ = q.peer.Send("turn/steer", map[string]any{
		"threadId": q.params.ThreadID, "expectedTurnId": q.params.TurnID, "input": []any{textInput(text)},
	}, nil)
}

// callAsked returns the tool call that needs permission.
func (c *conversation) callAsked(q question, params json.RawMessage) runnerscripts.ToolCall {
	a := q.params
	call := runnerscripts.ToolCall{ToolCallID: a.ItemID, Kind: runnerscripts.ToolOther}
	switch q.method {
	case askCommand:
		call = item{Type: itemCommand, ID: a.ItemID, Command: a.Command, Cwd: a.Cwd, CommandActions: a.CommandActions}.toolCall()
	case askFiles:
		call = c.translate.openCall(q.conv, a.ItemID)
	case askMCP:
		call = c.translate.openTool(q.conv, a.ServerName+"/"+a.Meta.Tool)
		if call.ToolCallID == "" { // the request is about something else
			call.ToolCallID = a.TurnID + "-" + a.ServerName
			call.Name, call.Title, call.RawInput = a.ServerName, a.Message, bytes.Clone(params)
		}
	case askUser:
		var asked []userQuestion
		if json.Unmarshal(a.Questions, &asked) == nil && len(asked) > 0 {
			call.Title = asked[0].Question
		}
		call.Name, call.RawInput = toolAsk, fmt.Appendf(nil, `{"questions":%s}`, a.Questions)
	}
	call.Status = runnerscripts.ToolPending
	if a.Reason != "" {
		call.Content = append(call.Content, textContent(a.Reason)...)
	}
	return call
}

// withdraw withdraws the permission request for a request of the program.
func (c *conversation) withdraw(requestID string) {
	c.mu.Lock()
	p := c.peer
	c.mu.Unlock()
	c.permissions.Withdraw(func(_ string, q question) bool { return q.peer == p && string(q.requestID) == requestID })
}

// Respond answers a permission request.
func (c *conversation) Respond(_ context.Context, id string, d runnerscripts.PermissionDecision) error {
	var answer any
	q, o, err := c.permissions.Answer(id, func(q question) (o runnerscripts.PermissionOption, err error) {
		if o, err = agent.Choose(q.options, d); err == nil {
			answer, err = q.answer(o, d)
		}
		return o, err
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	if d.Interrupt && !o.Kind.Allows() && c.query != nil {
		c.query.cancelled = true
	}
	c.mu.Unlock()
	if d.Message != "" && !o.Kind.Allows() && !d.Interrupt {
		q.steer(d.Message)
	}
	if d.Message != "" && d.Interrupt && !o.Kind.Allows() {
		c.log("info", "the reason of the rejection is not passed on to Codex, because the query ends with it", nil)
	}
	err = q.peer.Answer(q.requestID, answer)
	c.sendInterrupt()
	return err
}

// answer returns the answer in the program's format.
func (q question) answer(o runnerscripts.PermissionOption, d runnerscripts.PermissionDecision) (any, error) {
	switch {
	case q.method == askUser:
		return q.userAnswer(o, d)
	case q.method == askMCP && q.params.Meta.Kind != elicitedCall:
		return q.serverAnswer(o, d), nil
	case len(d.UpdatedInput) > 0:
		return nil, agent.Unsupported("leave updated_input out: Codex runs what it asked for or nothing")
	}
	decisions := map[string]string{optionAllow: "accept", optionSession: "acceptForSession", optionReject: "decline"}
	verdict := decisions[o.OptionID]
	if d.Interrupt && !o.Kind.Allows() {
		verdict = "cancel"
	}
	if q.method != askMCP {
		return decision(verdict), nil
	}
	switch verdict {
	case "acceptForSession":
		return elicitation("accept", map[string]any{}, map[string]any{"persist": "session"}), nil
	case "accept":
		return elicitation("accept", map[string]any{}, nil), nil
	}
	return elicitation(verdict, nil, nil), nil
}

func elicitation(action string, content, meta any) map[string]any {
	return map[string]any{"action": action, "content": content, "_meta": meta}
}

// serverAnswer returns the user's answer to an MCP server. updated_input holds the requested
// object.
func (question) serverAnswer(o runnerscripts.PermissionOption, d runnerscripts.PermissionDecision) map[string]any {
	switch {
	case !o.Kind.Allows() && d.Interrupt:
		return elicitation("cancel", nil, nil)
	case !o.Kind.Allows():
		return elicitation("decline", nil, nil)
	case len(d.UpdatedInput) > 0:
		return elicitation("accept", d.UpdatedInput, nil)
	}
	return elicitation("accept", map[string]any{}, nil)
}

// userAnswer returns the user's answers to the agent. updated_input holds them as {"answers": {id
// of the question: text}}.
func (q question) userAnswer(o runnerscripts.PermissionOption, d runnerscripts.PermissionDecision) (any, error) {
	answers := map[string]any{}
	if o.Kind.Allows() {
		var in struct {
			Answers map[string]string `json:"answers"`
		}
		if err := json.Unmarshal(d.UpdatedInput, &in); err != nil {
			return nil, agent.Invalid(`give the answers in updated_input as {"answers": {"id of the question": "text"}}: %v`, err)
		}
		for id, text := range in.Answers {
			answers[id] = map[string]any{"answers": []string{text}}
		}
	}
	return map[string]any{"answers": answers}, nil
}
