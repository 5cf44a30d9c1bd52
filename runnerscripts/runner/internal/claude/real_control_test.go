package claude

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
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
		made     []string
		stop     runnerscripts.StopReason
		output   string
	}{
		{
			"allowed once",
			runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce},
			runnerscripts.ToolCompleted,
			[]string{"asked"},
			runnerscripts.StopEndTurn, "no output",
		},
		{
			"allowed by option",
			runnerscripts.PermissionDecision{OptionID: "allow"},
			runnerscripts.ToolCompleted,
			[]string{"asked"},
			runnerscripts.StopEndTurn, "no output",
		},
		{
			"rejected with a message",
			runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "not today"},
			runnerscripts.ToolFailed, nil, runnerscripts.StopEndTurn, "not today",
		},
		{
			"rewritten",
			runnerscripts.PermissionDecision{
				Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"command":"touch rewritten"}`),
			},
			runnerscripts.ToolCompleted,
			[]string{"rewritten"},
			runnerscripts.StopEndTurn, "no output",
		},
		{
			"rejected and interrupted",
			runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Interrupt: true},
			runnerscripts.ToolFailed, nil, runnerscripts.StopCancelled, "The user",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.Start()
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
			for _, name := range []string{"asked", "rewritten"} {
				if want := len(tt.made) > 0 && tt.made[0] == name; f.Exists(name) != want {
					t.Errorf("file %s exists: %v", name, !want)
				}
			}
			call := agenttest.Fold(t, f.Out.All()).Blocks[2].Tool
			if call.Status != tt.status || len(call.Content) != 1 || !strings.Contains(call.Content[0].Content.Text, tt.output) {
				t.Errorf("call: %s", agenttest.Show(t, call))
			}
			if len(tt.decision.UpdatedInput) > 0 && (call.Title != "touch rewritten" || string(call.RawInput) != string(tt.decision.UpdatedInput)) {
				t.Errorf("the call does not tell what ran: %s", agenttest.Show(t, call))
			}
			resolved := agenttest.Payloads[runnerscripts.PermissionResolved](t, f.Out.All(), runnerscripts.TypePermissionResolved)
			if len(resolved) != 1 || resolved[0].ID != req.ID || resolved[0].Reason != "answered" {
				t.Errorf("resolved: %+v", resolved)
			}
			if err := c.Respond(t.Context(), req.ID, tt.decision); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
				t.Errorf("a second answer: %v", err)
			}
		})
	}
}

func TestAllowAlwaysAsksNoMoreAndLeavesTheWorkspaceAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	wait := f.PromptAsync(c, "run-command `touch always`")
	req := f.Asked()
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways}); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.WorkspaceFile("always")); err != nil {
		t.Fatal(err)
	}
	f.Prompt(c, "run-command `touch always`")
	if !f.Exists("always") {
		t.Error("the command did not run again")
	}
	if n := len(agenttest.Payloads[runnerscripts.PermissionRequest](t, f.Out.All(), runnerscripts.TypePermissionRequest)); n != 1 {
		t.Errorf("asked %d times", n)
	}
	if f.Exists(".claude") {
		t.Error("the rule was written into the workspace")
	}
}

func TestQuestionOfTheAgentIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	wait := f.PromptAsync(c, "ask-user")
	req := f.Asked()
	var input map[string]any
	if err := json.Unmarshal(req.ToolCall.RawInput, &input); err != nil || req.ToolCall.Title != "Which colour?" {
		t.Fatalf("request %s: %v", agenttest.Show(t, req), err)
	}
	input["answers"] = map[string]string{"Which colour?": "Blue"}
	answered, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce, UpdatedInput: answered}); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if got := f.LastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "Blue") {
		t.Errorf("the model was told %q", got)
	}
}

func TestInterruptMidStreamLeavesTheSessionUsable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	wait := f.PromptAsync(c, "slow-stream")
	if err := f.API.WaitHeld(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeAgentMessage))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	done, err := wait()
	if err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Fatalf("ended with %q, %v", done.StopReason, err)
	}
	if done.Usage.InputTokens == 0 {
		t.Error("the interrupted request cost nothing")
	}
	if text := agenttest.Said(t, f.Out.All()); !strings.HasPrefix(text, "One") || strings.Contains(text, "six") {
		t.Errorf("the agent said %q", text)
	}
	if done := f.Prompt(c, "remember"); done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("the next prompt ended with %q", done.StopReason)
	}
	f.SameAsTranscript()
	if err := c.Interrupt(t.Context()); err != nil {
		t.Errorf("without a query: %v", err)
	}
}

func TestAnInterruptedThoughtIsTakenBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	wait := f.PromptAsync(c, "slow-think")
	if err := f.API.WaitHeld(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.Out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeAgentThought))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Fatalf("ended with %q, %v", done.StopReason, err)
	}
	if blocks := agenttest.Fold(t, f.Out.All()).Blocks; len(blocks) != 1 {
		t.Errorf("blocks: %s", agenttest.Show(t, blocks))
	}
	f.SameAsTranscript()
}

func TestModeAndModelChangeMidway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.Model = "claude-opus-5-5"
	c := f.Start()
	f.Prompt(c, "plain-text")
	if got := f.LastRequest().Model; got != "claude-opus-5-5" {
		t.Errorf("the first model is %q", got)
	}
	if err := c.SetMode(t.Context(), "acceptEdits"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetModel(t.Context(), "claude-sonnet-4-5"); err != nil {
		t.Fatal(err)
	}
	f.Prompt(c, "write-file `notes.txt`") // the first mode would ask
	if got := f.LastRequest().Model; got != "claude-sonnet-4-5" {
		t.Errorf("the second model is %q", got)
	}
	if !f.Exists("notes.txt") {
		t.Error("the file is not written")
	}
	modes := agenttest.Payloads[runnerscripts.ModeUpdate](t, f.Out.All(), runnerscripts.TypeModeUpdate)
	if len(modes) != 1 || modes[0].CurrentModeID != "acceptEdits" {
		t.Errorf("modes: %+v", modes)
	}
	f.Prompt(c, "/compact")
	f.Prompt(c, "plain-text")
	f.SameAsTranscript()
	if err := c.SetMode(t.Context(), "no-such-mode"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("an unknown mode: %v", err)
	}
}

func TestFailureOfTheAPIFailsTheQueryWithItsStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text    string
		status  int
		retries int
	}{{"http-400", 400, 0}, {"http-529", 529, 1}} {
		t.Run(tt.text, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.Start()
			_, err := c.Prompt(t.Context(), "q", tt.text)
			failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
			if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != tt.status ||
				!strings.Contains(failure.Message, "scripted failure") {
				t.Fatalf("error %#v", err)
			}
			if text := agenttest.Said(t, f.Out.All()); text != "" {
				t.Errorf("the agent said %q", text)
			}
			if logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog); len(logs) != tt.retries {
				t.Errorf("logs: %+v", logs)
			}
			f.Prompt(c, "plain-text")
			f.SameAsTranscript()
		})
	}
}

// The program itself would retry for three minutes.
func TestAKeyThatIsRefusedEndsTheQueryAtTheSecondTry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	delete(f.Session.Agent.Env, "CLAUDE_CODE_MAX_RETRIES")
	c := f.Start()
	for range 2 {
		_, err := c.Prompt(t.Context(), "q", "http-401")
		failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
		if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != http.StatusUnauthorized ||
			!strings.Contains(failure.Message, "ANTHROPIC_API_KEY") {
			t.Fatalf("error %#v", err)
		}
	}
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) != 4 || !strings.HasPrefix(logs[0].Message, "the model's API refused the key with status 401; try 1 of ") {
		t.Errorf("logs: %+v", logs)
	}
	f.Prompt(c, "plain-text")
}

func TestAgentThatIsNotLoggedInSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"without a key": 0, "with a bad key": http.StatusUnauthorized} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			model, err := url.Parse(f.API.URL)
			if err != nil {
				t.Fatal(err)
			}
			var refuses atomic.Bool
			pass := httputil.NewSingleHostReverseProxy(model)
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if refuses.Load() {
					http.Error(w, `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`, status)
					return
				}
				pass.ServeHTTP(w, r)
			}))
			t.Cleanup(front.Close)
			f.Session.Agent.Env["ANTHROPIC_BASE_URL"] = front.URL
			refuses.Store(status != 0)
			if status == 0 {
				f.Session.Agent.Env["ANTHROPIC_API_KEY"] = ""
			}
			c := f.Start()
			_, err = c.Prompt(t.Context(), "q", "plain-text")
			failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
			if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != status || !strings.Contains(failure.Message, "give the agent a key") {
				t.Errorf("error %#v", err)
			}
			if refuses.Swap(false) {
				f.Prompt(c, "plain-text")
			}
		})
	}
}
