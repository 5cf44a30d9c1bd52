package query

import (
	"bytes"
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
	input = valid(input)
	id := "call-" + uuid.NewString()
	d := q.Ask(ctx, runnerscripts.PermissionRequest{
		ID: id,
		Options: []runnerscripts.PermissionOption{
			{OptionID: "allow", Name: "Allow", Kind: runnerscripts.AllowOnce},
			{OptionID: "allow_always", Name: "Allow for this session", Kind: runnerscripts.AllowAlways},
			{OptionID: "reject", Name: "Reject", Kind: runnerscripts.RejectOnce},
		},
		ToolCall: q.heldCall(id, tool, input),
	})
	switch {
	case d.Kind.Allows() && len(d.UpdatedInput) == 0:
		return ""
	case d.Kind.Allows():
		d.Message = "Its input cannot be changed here."
	case d.Message == "":
		d.Message = "The user does not allow it."
	}
	return "The call of " + tool + " was refused. " + d.Message
}

// Refuse is Hold for an agent that asks by itself, but may not ask about everything: it refuses what the rules deny, and
// lets all else pass. A call that a rule only may deny passes too: refused here, it could not be asked about.
func (q *Queries) Refuse(ctx context.Context, tool string, input json.RawMessage) (refusal string) {
	if q.Rules == nil || q.Rules.Decide(CallOf(q.heldCall("", tool, valid(input)))).Effect != rules.Deny {
		return ""
	}
	return q.Hold(ctx, tool, input)
}

// valid returns an input as JSON. A model writes none for a tool without parameters.
func valid(input json.RawMessage) json.RawMessage {
	switch {
	case len(bytes.TrimSpace(input)) == 0:
		return json.RawMessage("{}")
	case !json.Valid(input):
		input, _ = json.Marshal(string(input)) // a text does not fail
	}
	return input
}

// heldCall returns a call as a request has it. An agent of a user may have a tool of any name that runs commands, and read
// an input that is no JSON object.
func (q *Queries) heldCall(id, tool string, input json.RawMessage) runnerscripts.ToolCall {
	kind := runnerscripts.ToolOther
	var in struct{ Command, Cmd json.RawMessage }
	if err := json.Unmarshal(input, &in); err != nil || len(in.Command)+len(in.Cmd) > 0 {
		kind = runnerscripts.ToolExecute
	}
	subject := q.events.Hide.Text(q.Names.Subject(rules.Call{Name: tool, Kind: string(kind), Input: input})) // a cut could leave a part of a secret
	return runnerscripts.ToolCall{ToolCallID: id, Name: tool, Kind: kind, RawInput: input, Title: tool + " " + audit.Cut(subject)}
}
