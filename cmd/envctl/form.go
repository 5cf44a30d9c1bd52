package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/internal/form"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// formPrompt returns the prompt of question i of the form.
func formPrompt(f form.Form, i int) prompt {
	about := f.Questions[i]
	title, line := "The agent asks:", "your answer; Enter = no answer: "
	if len(f.Questions) > 1 {
		title = fmt.Sprintf("The agent asks (%d of %d):", i+1, len(f.Questions))
	}
	switch {
	case about.Several():
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

// formAnswers parses a line of the user: the numbers of options, or else the user's own words.
func formAnswers(q form.Question, line string) ([]string, error) {
	if len(q.Options) == 0 {
		return []string{line}, nil
	}
	parts := []string{line}
	if q.Several() {
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

// fill asks the questions of a form. If the user does not answer one, it rejects the request.
func (a *answerer) fill(ctx context.Context, req runnerscripts.PermissionRequest, f form.Form) runnerscripts.PermissionDecision {
	answers := make([][]string, len(f.Questions))
	for i, q := range f.Questions {
		left, ok := a.put(ctx, req, formPrompt(f, i), func(line string) (err error) {
			if line != "" {
				answers[i], err = formAnswers(q, line)
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
	d, err := f.Decision(req, answers)
	if err != nil {
		return req.Reject("The answer could not be passed on.")
	}
	d.By = userName()
	return d
}
