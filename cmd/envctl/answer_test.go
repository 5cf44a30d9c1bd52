package main

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The first answer counts. A later one fails, also if it is the same.
func TestAnAnswerAfterAnotherOneIsTooLate(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	box := environment.Sandbox{Type: "local", Spec: primitives.Spec{Keep: true}, Provider: &local.Provider{Root: t.TempDir()}}
	config, err := json.Marshal(runnerscripts.Scenario{Turns: []runnerscripts.ScenarioTurn{{Steps: []runnerscripts.ScenarioStep{
		{Ask: &runnerscripts.ScenarioStep{Run: []string{"true"}}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	env, err := environment.Create(t.Context(), environment.Config{
		Sandbox: box, Agent: environment.Agent{Name: "script", Config: config}, OnPermission: environment.AnswerLater, PermissionTimeout: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Terminate(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	second, err := environment.Attach(t.Context(), environment.Config{Sandbox: box, OnPermission: environment.AllowAll}, env.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	for ev, err := range env.ExecuteQuery(t.Context(), environment.Query{Prompt: "go"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch ev.Type {
		case runnerscripts.TypePermissionRequest:
			req, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
			if err == nil {
				err = env.Respond(t.Context(), req.ID, req.Reject(""))
			}
			if err != nil {
				t.Fatal(err)
			}
		case runnerscripts.TypePermissionResolved:
			done, err := runnerscripts.Payload[runnerscripts.PermissionResolved](ev)
			if err != nil {
				t.Fatal(err)
			}
			asked := environment.Waiting{ID: done.ID, Title: "true"}
			for _, kind := range []runnerscripts.PermissionKind{runnerscripts.AllowOnce, runnerscripts.RejectOnce} {
				err = give(t.Context(), second, asked, runnerscripts.PermissionDecision{Kind: kind}, new(atomic.Bool))
				if err == nil || err.Error() != `too late: the question "true" was answered already: reject once` {
					t.Errorf("the second answer, %s: %v", kind, err)
				}
			}
		}
	}
}

func TestAnAnswerIsAnOptionOrWords(t *testing.T) {
	req := runnerscripts.PermissionRequest{ID: "r", Options: []runnerscripts.PermissionOption{
		{OptionID: "once", Kind: runnerscripts.AllowOnce}, {OptionID: "mine", Kind: runnerscripts.AllowAlways}, {OptionID: "no", Kind: runnerscripts.RejectOnce},
	}}
	asks := request{Call: runnerscripts.ToolCall{Name: "AskUserQuestion", Kind: runnerscripts.ToolOther, RawInput: json.RawMessage(`{"questions":[{"question":"Which?","options":[{"label":"a"},{"label":"b"}]},{"question":"Why?"}]}`)}}
	for _, c := range []struct {
		req    runnerscripts.PermissionRequest
		answer []string
		want   string // of the decision as JSON
		wrong  string // of the error
	}{
		{req, []string{"allow"}, `"option_id":"once","kind":"allow_once"`, ""},
		{req, []string{"reject"}, `"option_id":"no","kind":"reject_once"`, ""},
		{req, []string{"mine"}, `"option_id":"mine","kind":"allow_always"`, ""},
		{req, []string{"2"}, `"option_id":"mine","kind":"allow_always"`, ""},
		{req, []string{"Use b"}, `"kind":"reject_once","message":"Use b"`, ""},
		{req, []string{"7"}, "", `"7" is no answer`},
		{req, []string{"allways"}, "", `did you mean always?`},
		{req, []string{"Use", "b"}, "", "quote an answer"},
		{runnerscripts.PermissionRequest{ID: "r", Options: req.Options[2:]}, []string{"allow"}, "", "does not offer allow_once"},
		{runnerscripts.PermissionRequest{ID: "r", ToolCall: asks.Call, Options: req.Options}, []string{"2", "It is new"}, `"answers":{"Which?":"b","Why?":"It is new"}`, ""},
		{runnerscripts.PermissionRequest{ID: "r", ToolCall: asks.Call, Options: req.Options}, []string{"allow"}, "", "the agent asks 2 questions"},
	} {
		d, err := answerTo(c.req, c.answer)
		got, _ := json.Marshal(d)
		if c.wrong == "" && (err != nil || !strings.Contains(string(got), c.want)) || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%q: %s, %v; want %s%s", c.answer, got, err, c.want, c.wrong)
		}
	}
}
