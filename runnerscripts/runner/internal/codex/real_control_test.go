package codex

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestRejectionOfAFileShowsWhatItWouldHaveBeen(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.PromptAsync(c, "write-file `asked.txt`")
	req := f.Asked()
	if call := req.ToolCall; call.Title != "Write asked.txt" || len(call.Content) != 1 || call.Content[0].Path != f.WorkspaceFile("asked.txt") {
		t.Errorf("request: %s", agenttest.Show(t, req))
	}
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if f.Exists("asked.txt") {
		t.Error("the file was written")
	}
	f.SameAsTranscript()
}

func TestReasonOfARejectionReachesTheModelAsTheUsersWords(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.PromptAsync(c, "run-command `touch asked`")
	f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "not today, think"})
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	last := f.LastRequest().Texts
	if len(last) != 2 || last[1] != "not today, think" {
		t.Errorf("the model was sent %q", last)
	}
	f.SameAsTranscript()
}

func TestQuestionOfTheAgentIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "plan" // the agent asks questions only in this mode
	c := f.start()
	wait := f.PromptAsync(c, "ask-user")
	req := f.Asked()
	if req.ToolCall.Title != "Which colour?" || !strings.Contains(string(req.ToolCall.RawInput), "The cold one") {
		t.Fatalf("request %s", agenttest.Show(t, req))
	}
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{
		Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"answers":{"colour":"Blue"}}`),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if got := f.LastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "Blue") {
		t.Errorf("the model was told %q", got)
	}
	f.SameAsTranscript()
}

func TestFailingAPIIsAskedAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text    string
		status  int
		retries int
	}{{"http-401", 401, 1}, {"http-529", 529, 1}} {
		t.Run(tt.text, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.start()
			_, err := c.Prompt(t.Context(), "q", tt.text)
			failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
			if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != tt.status ||
				!strings.Contains(failure.Message, "scripted failure") {
				t.Fatalf("error %#v", err)
			}
			if text := agenttest.Said(t, f.Out.All()); text != "" {
				t.Errorf("the agent said %q", text)
			}
			retries := 0
			for _, l := range agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog) {
				if strings.HasPrefix(l.Message, "the model's API failed") {
					retries++
				}
			}
			if retries != tt.retries {
				t.Errorf("%d retries are told", retries)
			}
			f.Prompt(c, "plain-text")
			f.SameAsTranscript()
		})
	}
}
