package acp

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/agenttest"
	"github.com/agentenv-dev/agentenv/internal/llmapi"
	"github.com/agentenv-dev/agentenv/internal/testagents"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// newRealFixture is a session of a real agent that speaks ACP, with a scripted
// model. The driver knows nothing of the agent but its command.
func newRealFixture(t *testing.T, program string) (*fixture, *llmapi.Server) {
	t.Helper()
	api, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Errorf("close the model: %v", err)
		}
	})
	f := &fixture{t: t, session: agenttest.NewSession(t, agent.NewUUID(), name), out: agenttest.NewRecorder()}
	home := f.session.Paths.Home
	switch program {
	case "gemini":
		f.session.Agent.Command = []string{testagents.Gemini(t), "--acp", "--model", "gemini-2.5-pro"}
		f.session.Agent.Env = map[string]string{
			"GOOGLE_GEMINI_BASE_URL": api.URL, "GEMINI_API_KEY": "test-key", "GEMINI_CLI_NO_RELAUNCH": "true",
			"GEMINI_CLI_TRUST_WORKSPACE": "false",
		}
		agenttest.WriteFile(t, filepath.Join(home, ".gemini", "settings.json"),
			`{"security":{"auth":{"selectedType":"gemini-api-key"}},"privacy":{"usageStatisticsEnabled":false}}`)
	case "opencode":
		f.session.Agent.Command = []string{testagents.OpenCode(t), "acp"}
		config := filepath.Join(home, "opencode.json")
		f.session.Agent.Env = map[string]string{
			"OPENCODE_CONFIG": config, "OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
			"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
		}
		const model = `{"tool_call":true,"limit":{"context":128000,"output":8192},"cost":{"input":1,"output":2}}`
		agenttest.WriteFile(t, config, fmt.Sprintf(`{"model":"scripted/small","small_model":"scripted/small","autoupdate":false,
			"share":"disabled","enabled_providers":["scripted"],"permission":{"edit":"ask","bash":"ask"},
			"provider":{"scripted":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":%q,"apiKey":"test-key"},
			"models":{"small":%s,"large":%s}}}}`, api.URL+"/v1", model, model))
	}
	return f, api
}

func (f *fixture) exists(file string) bool {
	_, err := os.Stat(filepath.Join(f.session.Paths.Workspace, file))
	return err == nil
}

// waitAsked waits for the n-th permission request.
func (f *fixture) waitAsked(n int) runnerscripts.PermissionRequest {
	f.t.Helper()
	var all []runnerscripts.PermissionRequest
	f.out.Wait(f.t.Context(), f.t, func(runnerscripts.Event) bool {
		all = agenttest.Payloads[runnerscripts.PermissionRequest](f.t, f.out.All(), runnerscripts.TypePermissionRequest)
		return len(all) > n
	})
	return all[n]
}

func TestRealAgents(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		program, mode, model string
		resumes              bool
	}{
		{"gemini", "plan", "gemini-2.5-flash", false}, // its sessions need the care of its own driver
		{"opencode", "plan", "scripted/large", true},
	} {
		t.Run(tt.program, func(t *testing.T) {
			t.Parallel()
			f, api := newRealFixture(t, tt.program)
			c := f.start()

			// Text, and tools that are allowed once, rejected, allowed for good.
			f.prompt(c, "the secret word is plum")
			decisions := []runnerscripts.PermissionKind{runnerscripts.AllowOnce, runnerscripts.RejectOnce, runnerscripts.AllowAlways}
			for n, kind := range decisions {
				wait := f.promptAsync(c, fmt.Sprintf("run-command `touch made-%d`", n))
				req := f.waitAsked(n)
				if req.ToolCall.Kind != runnerscripts.ToolExecute || req.ToolCall.ToolCallID == "" {
					t.Errorf("request: %s", agenttest.Show(t, req))
				}
				if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: kind}); err != nil {
					t.Fatal(err)
				}
				if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopEndTurn {
					t.Fatalf("%s: ended with %q, %v", kind, done.StopReason, err)
				}
				if f.exists(fmt.Sprintf("made-%d", n)) != kind.Allows() {
					t.Errorf("%s: the command ran: %v", kind, !kind.Allows())
				}
			}
			f.prompt(c, "run-command `touch made-2`")
			if asked := agenttest.Payloads[runnerscripts.PermissionRequest](t, f.out.All(), runnerscripts.TypePermissionRequest); len(asked) != len(decisions) {
				t.Errorf("asked %d times", len(asked))
			}

			// Interrupt; the session goes on.
			wait := f.promptAsync(c, "slow-stream")
			if err := api.WaitHeld(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := c.Interrupt(t.Context()); err != nil {
				t.Fatal(err)
			}
			if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
				t.Errorf("the interrupted one ended with %q, %v", done.StopReason, err)
			}

			// Mode and model.
			if err := c.SetMode(t.Context(), tt.mode); err != nil {
				t.Errorf("mode: %v", err)
			}
			if err := c.SetModel(t.Context(), tt.model); err != nil {
				t.Errorf("model: %v", err)
			}
			f.prompt(c, "remember")
			last := lastOf(t, api)
			if _, model, ok := strings.Cut(tt.model, "/"); last.Model != tt.model && (!ok || last.Model != model) {
				t.Errorf("the model was %q", last.Model)
			}
			if last.Texts[0] != "the secret word is plum" {
				t.Errorf("the model was sent %q", last.Texts)
			}
			f.sameTranscript()
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if !tt.resumes {
				return
			}
			f.prompt(f.start(), "remember")
			if got := lastOf(t, api).Texts; got[0] != "the secret word is plum" {
				t.Errorf("after the resume the model was sent %q", got)
			}
			f.sameTranscript()
		})
	}
}

// lastOf is the last request to a model that offers tools: agents ask for titles,
// too.
func lastOf(t *testing.T, api *llmapi.Server) llmapi.Request {
	t.Helper()
	var last llmapi.Request
	for _, r := range api.Requests() {
		if len(r.Tools) > 0 {
			last = r
		}
	}
	if last.Path == "" {
		t.Fatal("the model was asked nothing")
	}
	return last
}

func TestUsageOfARealAgentIsThatOfTheQuery(t *testing.T) {
	t.Parallel()
	f, api := newRealFixture(t, "opencode")
	c := f.start()
	for range 2 {
		got := f.prompt(c, "plain-text").Usage
		r := lastOf(t, api).Usage
		if got.InputTokens != r.InputTokens || got.OutputTokens != r.OutputTokens || got.CacheReadTokens != r.CacheReadTokens || got.CostUSD <= 0 {
			t.Errorf("usage %+v, the model says %+v", got, r)
		}
	}
}
