package claude

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

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
	done, err := wait()
	if err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Fatalf("ended with %q, %v", done.StopReason, err)
	}
	if done.Usage.InputTokens == 0 {
		t.Error("the interrupted request cost nothing")
	}
	if blocks := agenttest.Fold(t, f.Out.All()).Blocks; len(blocks) != 1 {
		t.Errorf("blocks: %s", agenttest.Show(t, blocks))
	}
	f.SameAsTranscript()
}

func TestRejectionTellsTheModelItsMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	wait := f.PromptAsync(c, "run-command `touch asked`")
	f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "not today"})
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if got := f.LastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "not today") {
		t.Errorf("the model was told %q", got)
	}
}

func TestCompactedConversationIsInTheTranscript(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	for _, text := range []string{"plain-text", "/compact", "plain-text"} {
		f.Prompt(c, text)
	}
	f.SameAsTranscript()
}

func TestOverloadedAPIIsAskedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	_, err := c.Prompt(t.Context(), "q", "http-529")
	failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != 529 || !strings.Contains(failure.Message, "scripted failure") {
		t.Fatalf("error %#v", err)
	}
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) != 1 || logs[0].Level != "warn" || logs[0].Code != runnerscripts.FailAPI || logs[0].HTTPStatus != 529 {
		t.Errorf("logs: %+v", logs)
	}
	f.Prompt(c, "plain-text")
	f.SameAsTranscript()
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
	// The program may try once more before the interrupt arrives, but not as often as by itself.
	if len(logs) < 4 || len(logs) >= 2*10 || !strings.HasPrefix(logs[0].Message, "the model's API refused the key with status 401; try 1 of ") {
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
