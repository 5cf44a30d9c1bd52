package codex

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestPermissionDecides(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		decision runnerscripts.PermissionDecision
		status   runnerscripts.ToolStatus
		stop     runnerscripts.StopReason
		told     string // what the model receives
	}{
		{
			"allowed once",
			runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce},
			runnerscripts.ToolCompleted, runnerscripts.StopEndTurn, "exited with code 0",
		},
		{
			"allowed by option",
			runnerscripts.PermissionDecision{OptionID: optionAllow},
			runnerscripts.ToolCompleted, runnerscripts.StopEndTurn, "exited with code 0",
		},
		{
			"rejected",
			runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce},
			runnerscripts.ToolFailed, runnerscripts.StopEndTurn, "rejected by user",
		},
		{
			"rejected and interrupted",
			runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Interrupt: true},
			runnerscripts.ToolFailed, runnerscripts.StopCancelled, "",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.start()
			wait := f.PromptAsync(c, "run-command `touch asked`")
			req := f.Asked()
			if req.ToolCall.Title != "touch asked" || req.ToolCall.Status != runnerscripts.ToolPending || req.ToolCall.Kind != runnerscripts.ToolExecute {
				t.Errorf("request: %s", agenttest.Show(t, req))
			}
			if err := c.Respond(t.Context(), req.ID, tt.decision); err != nil {
				t.Fatal(err)
			}
			done, err := wait()
			if err != nil || done.StopReason != tt.stop {
				t.Errorf("ended with %q, %v", done.StopReason, err)
			}
			if want := tt.status == runnerscripts.ToolCompleted; f.Exists("asked") != want {
				t.Errorf("the command ran: %v", !want)
			}
			call := agenttest.Fold(t, f.Out.All()).Blocks[2].Tool
			if call.Status != tt.status || call.ToolCallID != req.ToolCall.ToolCallID {
				t.Errorf("call: %s", agenttest.Show(t, call))
			}
			if results := strings.Join(f.LastRequest().Results, " "); !strings.Contains(results, tt.told) {
				t.Errorf("the model was told %q", results)
			}
			resolved := agenttest.Payloads[runnerscripts.PermissionResolved](t, f.Out.All(), runnerscripts.TypePermissionResolved)
			if len(resolved) != 1 || resolved[0].ID != req.ID || resolved[0].Reason != "answered" {
				t.Errorf("resolved: %+v", resolved)
			}
			if err := c.Respond(t.Context(), req.ID, tt.decision); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
				t.Errorf("a second answer: %v", err)
			}
			f.SameAsTranscript()
		})
	}
}

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

func TestAnotherInputThanTheOneThatIsAskedForIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.PromptAsync(c, "run-command `touch asked`")
	req := f.Asked()
	err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{
		Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"command":"touch rewritten"}`),
	})
	if !agenttest.HasCode(err, runnerscripts.FailUnsupported) || !strings.Contains(err.Error(), "updated_input") {
		t.Errorf("error %v", err)
	}
	// The permission request is still pending.
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}); err != nil {
		t.Error(err)
	}
	if _, err := wait(); err != nil {
		t.Error(err)
	}
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

func TestModeAndModelChangeMidway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	f.Prompt(c, "plain-text")
	if got := f.LastRequest().Model; got != testModel {
		t.Errorf("the first model is %q", got)
	}
	if err := c.SetMode(t.Context(), "full-access"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetModel(t.Context(), "another-model"); err != nil {
		t.Fatal(err)
	}
	f.Prompt(c, "run-command `touch notes.txt`") // the first mode would ask
	if got := f.LastRequest().Model; got != "another-model" {
		t.Errorf("the second model is %q", got)
	}
	if !f.Exists("notes.txt") {
		t.Error("the command did not run")
	}
	modes := agenttest.Payloads[runnerscripts.ModeUpdate](t, f.Out.All(), runnerscripts.TypeModeUpdate)
	if len(modes) != 1 || modes[0].CurrentModeID != "full-access" {
		t.Errorf("modes: %+v", modes)
	}
	if err := c.SetMode(t.Context(), "no-such-mode"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) ||
		!strings.Contains(err.Error(), "read-only") {
		t.Errorf("an unknown mode: %v", err)
	}
	if err := c.SetModel(t.Context(), ""); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("no model: %v", err)
	}
}

func TestFailureOfTheAPIFailsTheQueryWithItsStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text    string
		status  int
		retries int
	}{{"http-400", 400, 0}, {"http-401", 401, 1}, {"http-529", 529, 1}} {
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
