package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/form"
	"github.com/agentenv-dev/agentenv/internal/test/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// A user answers the question of an agent by a number or in words, and the model gets the
// answer.
func TestAQuestionOfARealAgentIsAnsweredOnATerminal(t *testing.T) {
	words := "something green"
	for name, agent := range map[string]func(url string) map[string]any{
		"claude": func(url string) map[string]any {
			return map[string]any{
				"name": "claude", "command": []string{testagents.Claude(t)},
				"env": map[string]string{"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "test-key"},
			}
		},
		"codex": func(url string) map[string]any {
			return map[string]any{
				"name": "codex", "command": []string{testagents.Codex(t)}, "model": "gpt-5.5", "permission_mode": "plan", // asks in plan mode only
				"env": map[string]string{"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": "test-key"},
			}
		},
		"opencode": func(url string) map[string]any {
			return map[string]any{
				"name": "opencode", "command": []string{testagents.OpenCode(t)}, "model": "scripted/small",
				"config": map[string]any{"provider": map[string]any{"scripted": map[string]any{
					"npm":     "@ai-sdk/openai-compatible",
					"options": map[string]any{"baseURL": url + "/v1", "apiKey": "test-key"},
					"models":  map[string]any{"small": map[string]any{"tool_call": true}},
				}}},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			model := startedModel(t, "")
			cfg := map[string]any{"sandbox": "local", "agent": agent(model.URL)}
			answers, wants := []string{words}, []string{words}
			if name == "claude" { // the tests of the drivers choose an option with each agent
				answers, wants = []string{"2", words}, []string{"Blue", words}
			}
			args := []string{"run", "-c", configFile(t, cfg)}
			for range answers {
				args = append(args, "ask-user")
			}
			s := startOnTerminal(t, args...)
			for _, answer := range answers {
				s.wait("\nThe agent asks:\r\n")
				question := s.until("no answer: ")
				if rows := mark + "Which colour?\n  1\n" + mark + "Red: The warm one\n  2\n" + mark + "Blue: The cold one\n"; !strings.HasPrefix(question, rows) {
					t.Errorf("the question is\n%s", question)
				}
				s.typeIn("7\r")
				s.wait("is no answer to this")
				s.wait("no answer: ")
				s.typeIn(answer + "\r")
			}
			if code := s.end(); code != exitOK {
				t.Errorf("exit status %d:\n%s", code, &s.seen)
			}
			var results []string
			for _, r := range model.Requests() {
				results = append(results, r.Results...)
			}
			for _, want := range wants {
				if !strings.Contains(strings.Join(results, "\n"), want) {
					t.Errorf("the model got %q, want %q", results, want)
				}
			}
		})
	}
}

func TestOnlyAQuestionIsAskedLikeOne(t *testing.T) {
	const questions = `{"questions":[{"question":"Which?","options":[{"label":"Red"}]}]}`
	call := runnerscripts.ToolCall{Name: "AskUserQuestion", Kind: runnerscripts.ToolOther, RawInput: json.RawMessage(questions)}
	if _, ok := form.Of(runnerscripts.PermissionRequest{ToolCall: call}); !ok {
		t.Error("a question is not known as one")
	}
	for name, change := range map[string]func(*runnerscripts.ToolCall){
		"another tool": func(c *runnerscripts.ToolCall) { c.Name = "Bash" },
		"another kind": func(c *runnerscripts.ToolCall) { c.Kind = runnerscripts.ToolExecute },
		"more input":   func(c *runnerscripts.ToolCall) { c.RawInput = json.RawMessage(`{"questions":[{}],"command":"ls"}`) },
		"no questions": func(c *runnerscripts.ToolCall) { c.RawInput = json.RawMessage(`{"questions":[]}`) },
		"a change":     func(c *runnerscripts.ToolCall) { c.Content = []runnerscripts.ToolCallContent{{Type: "diff"}} },
		"many answers": func(c *runnerscripts.ToolCall) {
			c.RawInput = json.RawMessage(`{"questions":[{"options":[` + strings.Repeat("{},", 20) + `{}]}]}`)
		},
		"no such input": func(c *runnerscripts.ToolCall) { c.RawInput = nil },
	} {
		other := call
		change(&other)
		if _, ok := form.Of(runnerscripts.PermissionRequest{ToolCall: other}); ok {
			t.Errorf("%s is asked like a question", name)
		}
	}
}

func TestSeveralAnswersAreUnderstood(t *testing.T) {
	f, ok := form.Of(runnerscripts.PermissionRequest{ToolCall: runnerscripts.ToolCall{
		Name: "question", Kind: runnerscripts.ToolOther,
		RawInput: json.RawMessage(`{"questions":[{"question":"Which?","multiple":true,"options":[{"label":"Red"},{"label":"Blue"}]}]}`),
	}})
	if !ok {
		t.Fatal("a question is not known as one")
	}
	for line, want := range map[string][]string{
		"1,2": {"Red", "Blue"}, "2, 2": {"Blue"}, "1, and green": {"1, and green"}, "3": nil, "1,99999999999999999999": nil,
	} {
		if got, err := formAnswers(f.Questions[0], line); !slices.Equal(got, want) || err == nil != (want != nil) {
			t.Errorf("%q is understood as %q, %v", line, got, err)
		}
	}
}
