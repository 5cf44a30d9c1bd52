package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// form is a list of questions that an agent asks the user, for words and not for a permission.
type form struct {
	tool      string
	input     map[string]json.RawMessage
	questions []formQuestion
}

// formQuestion is one question of a form.
type formQuestion struct {
	ID       string `json:"id"` // Codex
	Question string `json:"question"`
	Header   string `json:"header"`
	Options  []struct {
		Label       string `json:"label"`
		Description string `json:"description"`
	} `json:"options"`
	MultiSelect bool `json:"multiSelect"` // Claude Code
	Multiple    bool `json:"multiple"`    // OpenCode
}

// The tools with which agents ask the user.
const (
	claudeAsks   = "AskUserQuestion"
	codexAsks    = "request_user_input"
	openCodeAsks = "question"
)

// formOf returns the questions of a request. A request that may also be for something else is
// not a form: an answer would allow that, too.
func formOf(req runnerscripts.PermissionRequest) (f form, ok bool) {
	call := req.ToolCall
	f.tool = call.Name
	if !slices.Contains([]string{claudeAsks, codexAsks, openCodeAsks}, f.tool) || call.Kind != runnerscripts.ToolOther || len(call.Content) > 0 {
		return f, false
	}
	if json.Unmarshal(call.RawInput, &f.input) != nil || len(f.input) != 1 ||
		json.Unmarshal(f.input["questions"], &f.questions) != nil {
		return f, false
	}
	for _, q := range f.questions {
		if len(q.Options) > mostOptions {
			return f, false
		}
	}
	return f, len(f.questions) > 0 && len(f.questions) <= mostFields
}

// prompt returns the prompt of question i of the form.
func (f form) prompt(i int) prompt {
	about := f.questions[i]
	title, line := "The agent asks:", "your answer; Enter = no answer: "
	if len(f.questions) > 1 {
		title = fmt.Sprintf("The agent asks (%d of %d):", i+1, len(f.questions))
	}
	switch {
	case about.several():
		line = "numbers as in 1,2, or your own words; Enter = no answer: "
	case len(about.Options) > 0:
		line = "number, or your own words; Enter = no answer: "
	}
	return prompt{most: mostRows, title: title, line: line, rows: func(q *questionText) {
		q.foreign(about.Question, false)
		for n, o := range about.Options {
			q.add(term.Plain(fmt.Sprintf("\n  %d", n+1)))
			text := o.Label
			if o.Description != "" {
				text += ": " + o.Description
			}
			q.foreign(text, true)
		}
	}}
}

func (q formQuestion) several() bool { return (q.MultiSelect || q.Multiple) && len(q.Options) > 0 }

// answers parses a line of the user: the numbers of options, or else the user's own words.
func (q formQuestion) answers(line string) ([]string, error) {
	if len(q.Options) == 0 {
		return []string{line}, nil
	}
	parts := []string{line}
	if q.several() {
		parts = strings.Split(line, ",")
	}
	var labels []string
	for _, part := range parts {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if errors.Is(err, strconv.ErrSyntax) {
			return []string{line}, nil
		}
		if err != nil || n < 1 || n > len(q.Options) {
			return nil, fmt.Errorf("%q is no answer to this; type a number of 1 to %d, or words", part, len(q.Options))
		}
		if label := q.Options[n-1].Label; !slices.Contains(labels, label) {
			labels = append(labels, label)
		}
	}
	return labels, nil
}

// decision returns the answer to the request, in the form that the agent's tool expects.
func (f form) decision(req runnerscripts.PermissionRequest, answers [][]string) (runnerscripts.PermissionDecision, error) {
	var given any = answers
	input := map[string]any{}
	if f.tool != openCodeAsks {
		texts := make(map[string]string)
		for i, q := range f.questions {
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
func (f form) key(q formQuestion) string {
	if f.tool == codexAsks {
		return q.ID
	}
	return q.Question
}

// fill asks the questions of a form. If the user does not answer one, it rejects the request.
func (a *answerer) fill(ctx context.Context, req runnerscripts.PermissionRequest, f form) runnerscripts.PermissionDecision {
	answers := make([][]string, len(f.questions))
	for i, q := range f.questions {
		left, ok := a.put(ctx, req, f.prompt(i), func(line string) (err error) {
			if line != "" {
				answers[i], err = q.answers(line)
			}
			return err
		})
		switch {
		case !ok:
			return left
		case answers[i] == nil:
			return req.Reject("The user did not answer.")
		}
	}
	d, err := f.decision(req, answers)
	if err != nil {
		return req.Reject("The answer could not be passed on.")
	}
	return d
}
