// Package form has the lists of questions with which agents ask the user for words, and not for a permission.
package form

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Bounds of a form. What has more is no form.
const (
	MaxQuestions = 20
	MaxOptions   = 20
)

// Form is a list of questions that an agent asks.
type Form struct {
	Questions []Question

	tool  string
	input map[string]json.RawMessage
}

// Question is one question of a form.
type Question struct {
	ID          string   `json:"id"` // Codex
	Question    string   `json:"question"`
	Header      string   `json:"header"`
	Options     []Option `json:"options"`
	MultiSelect bool     `json:"multiSelect"` // Claude Code
	Multiple    bool     `json:"multiple"`    // OpenCode
}

// Option is a possible answer.
type Option struct {
	Label       string `json:"label"`
	Description string `json:"description"`
}

// The tools with which agents ask the user.
const (
	claudeAsks   = "AskUserQuestion"
	codexAsks    = "request_user_input"
	openCodeAsks = "question"
)

// Of returns the form of a request. A request that may also be for something else is
// not a form: an answer would allow that, too.
func Of(req runnerscripts.PermissionRequest) (f Form, ok bool) {
	call := req.ToolCall
	f.tool = call.Name
	if !slices.Contains([]string{claudeAsks, codexAsks, openCodeAsks}, f.tool) || call.Kind != runnerscripts.ToolOther || len(call.Content) > 0 {
		return f, false
	}
	if json.Unmarshal(call.RawInput, &f.input) != nil || len(f.input) != 1 ||
		json.Unmarshal(f.input["questions"], &f.Questions) != nil {
		return f, false
	}
	for _, q := range f.Questions {
		if len(q.Options) > MaxOptions {
			return f, false
		}
	}
	return f, len(f.Questions) > 0 && len(f.Questions) <= MaxQuestions
}

// Several reports whether the user may choose several options.
func (q Question) Several() bool { return (q.MultiSelect || q.Multiple) && len(q.Options) > 0 }

// Decision returns the answer to the request, in the form that the agent's tool expects. Each question has its answers.
func (f Form) Decision(req runnerscripts.PermissionRequest, answers [][]string) (runnerscripts.PermissionDecision, error) {
	var given any = answers
	input := map[string]any{}
	if f.tool != openCodeAsks {
		texts := make(map[string]string)
		for i, q := range f.Questions {
			texts[f.key(q)] = strings.Join(answers[i], ", ")
		}
		given = texts
	}
	if f.tool == claudeAsks { // the tool needs its whole input
		input["questions"] = f.input["questions"]
	}
	input["answers"] = given
	d := req.Allow()
	var err error
	d.UpdatedInput, err = json.Marshal(input)
	return d, err
}

// key returns the key of a question's answer.
func (f Form) key(q Question) string {
	if f.tool == codexAsks {
		return q.ID
	}
	return q.Question
}
