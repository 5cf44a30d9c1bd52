// Package handoff converts a conversation between agents, so that one agent can continue what
// another has begun: the events of one driver's transcript become a Conversation, which another
// driver writes as its own transcript.
package handoff

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// Conversation has the messages and tool calls of a conversation, oldest first. It starts with a
// user message. It omits thoughts, plans and the conversations of subagents; a subagent's result is
// the output of the call that started it.
type Conversation struct {
	// Agent is the name of the original agent.
	Agent string
	Items []Item
}

// Item is a message or a tool call.
type Item struct {
	Kind Kind
	Time time.Time
	Text string // of User and Agent; never blank
	Call *Call  // of Tool
}

// Kind says which fields of an Item are set.
type Kind int

// The kinds.
const (
	User  Kind = iota // a message of the user
	Agent             // a message of the agent
	Tool              // a tool call that has ended
)

// Call is a tool call that has ended.
type Call struct {
	Name  string // letters, digits, "_" and "-", as every API accepts
	Title string
	Kind  runnerscripts.ToolKind
	// Input is a JSON object.
	Input  json.RawMessage
	Output string // never empty
	Failed bool
}

// Command returns the command line of a call that ran a command.
func (c *Call) Command() (string, bool) {
	var in struct {
		Command string `json:"command"`
	}
	switch c.Kind {
	case runnerscripts.ToolExecute, runnerscripts.ToolRead, runnerscripts.ToolSearch: // kinds of commands that read
		_ = json.Unmarshal(c.Input, &in) // other inputs have no command
	}
	return in.Command, in.Command != ""
}

var notOfName = agent.Pattern{Expr: `[^A-Za-z0-9_-]+`}

// nameOf converts a tool's name to one that every API accepts.
func nameOf(call runnerscripts.ToolCall) string {
	name := strings.Trim(notOfName.Get().ReplaceAllString(call.Name, "_"), "_")
	if name == "" {
		name = string(call.Kind)
	}
	if name == "" {
		name = "tool"
	}
	return name[:min(len(name), 64)]
}

// inputOf converts a tool's input to a JSON object.
func inputOf(raw json.RawMessage) json.RawMessage {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" || !json.Valid(raw) {
		return json.RawMessage("{}")
	}
	if raw[0] != '{' {
		return append(append(json.RawMessage(`{"input":`), raw...), '}')
	}
	return raw
}

// outputOf returns the output of a tool call, as far as its events contain it, or else a text about
// its end.
func outputOf(call runnerscripts.ToolCall) string {
	var said, changed []string
	for _, c := range call.Content {
		switch {
		case c.Type == "diff":
			changed = append(changed, "Changed "+c.Path)
		case c.Content == nil:
		case c.Content.Text != "":
			said = append(said, c.Content.Text)
		default:
			said = append(said, "("+c.Content.Type+" "+c.Content.URI+")")
		}
	}
	if len(said) == 0 {
		if text := textIn(call.RawOutput, 0); strings.TrimSpace(text) != "" {
			said = []string{text}
		}
	}
	if len(said) == 0 {
		said = changed
	}
	text := strings.Join(said, "\n")
	if strings.TrimSpace(text) != "" {
		return text
	}
	switch call.Status {
	case runnerscripts.ToolCompleted:
		return "(done, without output)"
	case runnerscripts.ToolFailed:
		return "(failed, without output)"
	}
	return "(interrupted: there is no output)"
}

// textIn returns the text in a tool's output: a string, or a string under one of the keys that
// agents use.
func textIn(raw json.RawMessage, depth int) string {
	const deepest = 6 // twice the depth of a list in an object in a list
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || depth > deepest {
		return ""
	}
	switch raw[0] {
	case '"':
		var s string
		_ = json.Unmarshal(raw, &s) // empty if raw is no string
		return s
	case '[':
		var list []json.RawMessage
		_ = json.Unmarshal(raw, &list)
		var texts []string
		for _, v := range list {
			if text := textIn(v, depth+1); text != "" {
				texts = append(texts, text)
			}
		}
		return strings.Join(texts, "\n")
	case '{':
		var fields map[string]json.RawMessage
		_ = json.Unmarshal(raw, &fields)
		for _, name := range []string{"output", "stdout", "text", "content", "error", "functionResponse", "response"} {
			if text := textIn(fields[name], depth+1); text != "" {
				return text
			}
		}
	}
	return ""
}
