package acpserver

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	acp "github.com/coder/acp-go-sdk"

	"github.com/agentenv-dev/agentenv/internal/form"
	"github.com/agentenv-dev/agentenv/internal/visible"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// elicitation is the request elicitation/create, which acp-go-sdk knows without its session.
type elicitation struct {
	SessionID  acp.SessionId   `json:"sessionId"`
	ToolCallID *acp.ToolCallId `json:"toolCallId,omitempty"`
	Mode       string          `json:"mode"`
	Message    string          `json:"message"`
	Schema     formSchema      `json:"requestedSchema"`
}

// formSchema is the JSON schema of a form.
type formSchema struct {
	Type       string              `json:"type"`
	Properties map[string]property `json:"properties"`
	Required   []string            `json:"required"`
}

// property is the schema of the answer to a question: a text, one of some options, or several of them.
type property struct {
	Type        string   `json:"type"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description"`
	OneOf       []choice `json:"oneOf,omitempty"`
	Items       *choose  `json:"items,omitempty"`
}

type choose struct {
	AnyOf []choice `json:"anyOf"`
}

type choice struct {
	Const       string `json:"const"`
	Title       string `json:"title"`
	Description string `json:"description,omitempty"`
}

// elicited is the answer to an elicitation.
type elicited struct {
	Action  string         `json:"action"`
	Content map[string]any `json:"content"`
}

// propertyName returns the name of a question's answer. Names are in the order of the questions, also when they are sorted.
func propertyName(i int) string { return fmt.Sprintf("answer%02d", i+1) }

// elicit returns how to show a form to the user of the client.
func (c *conversation) elicit(req runnerscripts.PermissionRequest, f form.Form) func(context.Context) runnerscripts.PermissionDecision {
	ask := elicitation{
		SessionID: c.id, ToolCallID: given(acp.ToolCallId(req.ToolCall.ToolCallID)), Mode: "form", Message: "The agent asks.",
		Schema: formSchema{Type: "object", Properties: make(map[string]property)},
	}
	for i, q := range f.Questions {
		ask.Schema.Properties[propertyName(i)] = propertyOf(q)
		ask.Schema.Required = append(ask.Schema.Required, propertyName(i))
	}
	return func(ctx context.Context) runnerscripts.PermissionDecision {
		res, err := acp.SendRequest[elicited](c.server.conn, ctx, acp.ClientMethodElicitationCreate, ask)
		switch {
		case err != nil:
			return req.Reject(fmt.Sprintf("The editor could not ask the user: %v", err))
		case res.Action != "accept":
			return req.Reject("The user did not answer.")
		}
		answers := make([][]string, len(f.Questions))
		for i := range f.Questions {
			if answers[i] = answersOf(res.Content[propertyName(i)]); answers[i] == nil {
				return req.Reject("The user did not answer.")
			}
		}
		d, err := f.Decision(req, answers)
		if err != nil {
			return req.Reject("The answer could not be passed on.")
		}
		return d
	}
}

func propertyOf(q form.Question) property {
	p := property{Type: "string", Title: visible.Line(q.Header), Description: visible.Text(q.Question)}
	var choices []choice
	known := make(map[string]bool)
	for _, o := range q.Options {
		if known[o.Label] || o.Label == "" {
			continue
		}
		known[o.Label] = true
		choices = append(choices, choice{o.Label, cmp.Or(visible.Line(o.Label), "?"), visible.Text(o.Description)})
	}
	switch {
	case len(choices) == 0:
	case q.Several():
		p.Type, p.Items = "array", &choose{choices}
	default:
		p.OneOf = choices
	}
	return p
}

// answersOf returns the answers in a value of a form; nil if there are none.
func answersOf(v any) []string {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var answers []string
	for _, v := range list {
		if text, ok := v.(string); ok && strings.TrimSpace(text) != "" {
			answers = append(answers, text)
		}
	}
	return answers
}
