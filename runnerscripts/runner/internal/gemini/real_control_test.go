package gemini

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
		made     bool
		stop     runnerscripts.StopReason
	}{
		{
			"allowed once",
			runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce},
			runnerscripts.ToolCompleted, true, runnerscripts.StopEndTurn,
		},
		{
			"allowed by option",
			runnerscripts.PermissionDecision{OptionID: "proceed_once"},
			runnerscripts.ToolCompleted, true, runnerscripts.StopEndTurn,
		},
		{
			"rejected",
			runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "not today"},
			runnerscripts.ToolFailed, false, runnerscripts.StopEndTurn,
		},
		{
			"rejected and interrupted",
			runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Interrupt: true},
			runnerscripts.ToolFailed, false, runnerscripts.StopCancelled,
		},
		{
			"allowed for the session",
			runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways},
			runnerscripts.ToolCompleted, true, runnerscripts.StopEndTurn,
		},
	}
	f := newFixture(t)
	c := f.Start()
	for n, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := fmt.Sprintf("asked-%d", n)
			wait := f.PromptAsync(c, "run-command `touch "+file+"`")
			req := f.AskedAgain(n)
			if req.ToolCall.Title != "touch "+file || req.ToolCall.Status != runnerscripts.ToolPending ||
				req.ToolCall.Kind != runnerscripts.ToolExecute || len(req.Options) != 3 {
				t.Errorf("request: %s", agenttest.Show(t, req))
			}
			rewritten := tt.decision
			rewritten.UpdatedInput = json.RawMessage(`{"command":"touch other"}`)
			if err := c.Respond(t.Context(), req.ID, rewritten); !agenttest.HasCode(err, runnerscripts.FailUnsupported) {
				t.Errorf("a rewritten input: %v", err)
			}
			if err := c.Respond(t.Context(), req.ID, tt.decision); err != nil {
				t.Fatal(err)
			}
			done, err := wait()
			if err != nil || done.StopReason != tt.stop {
				t.Errorf("ended with %q, %v", done.StopReason, err)
			}
			if f.Exists(file) != tt.made {
				t.Errorf("the file is there: %v", !tt.made)
			}
			if call := f.lastCall(); call.Status != tt.status || call.Title != "touch "+file {
				t.Errorf("call: %s", agenttest.Show(t, call))
			}
			resolved := agenttest.Payloads[runnerscripts.PermissionResolved](t, f.Out.All(), runnerscripts.TypePermissionResolved)
			if len(resolved) != n+1 || resolved[n].ID != req.ID || resolved[n].Reason != "answered" {
				t.Errorf("resolved: %+v", resolved)
			}
			if err := c.Respond(t.Context(), req.ID, tt.decision); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
				t.Errorf("a second answer: %v", err)
			}
		})
	}
	// The last test case allowed the command for the session.
	f.Prompt(c, "run-command `touch again`")
	if n := len(f.Requests()); !f.Exists("again") || n != len(tests) {
		t.Errorf("the command ran: %v, asked %d times", f.Exists("again"), n)
	}
	if f.Exists(".gemini") {
		t.Error("the rule was written into the workspace")
	}
}

func TestInterruptMidStreamLeavesTheSessionUsable(t *testing.T) {
	t.Parallel()
	for name, typ := range map[string]runnerscripts.EventType{
		"slow-stream": runnerscripts.TypeAgentMessage, "slow-think": runnerscripts.TypeAgentThought,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.Start()
			f.Prompt(c, "first plain-text")
			before := len(f.Out.All())
			wait := f.PromptAsync(c, name)
			if err := f.API.WaitHeld(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.Out.Wait(t.Context(), t, func(e runnerscripts.Event) bool {
				return e.Type == typ && len(f.Out.All()) > before+1
			})
			if err := c.Interrupt(t.Context()); err != nil {
				t.Fatal(err)
			}
			done, err := wait()
			if err != nil || done.StopReason != runnerscripts.StopCancelled {
				t.Fatalf("ended with %q, %v", done.StopReason, err)
			}
			f.Prompt(c, "remember")
			// The program forgets the interrupted prompt and its answer.
			if got := agenttest.Said(t, f.Out.All()); strings.Contains(got, "One") || !strings.Contains(got, "before: first plain-text") {
				t.Errorf("the agent said %q", got)
			}
			f.SameAsTranscript()
			if err := c.Interrupt(t.Context()); err != nil {
				t.Errorf("without a query: %v", err)
			}
		})
	}
}

func TestModesDecideWhatIsAsked(t *testing.T) {
	t.Parallel()
	modes := []struct {
		mode  string
		asked []string // titles of the permission requests
		works bool     // a tool that writes is offered
	}{
		{modeAutoEdit, []string{"touch mode"}, true}, // the mode at the start
		{modeDefault, []string{"Writing to mode.txt", "touch mode"}, true},
		{modeYOLO, nil, true},
		{modePlan, nil, false},
	}
	for _, trusted := range []bool{false, true} {
		t.Run(fmt.Sprintf("trusted %v", trusted), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Session.Agent.PermissionMode, f.Session.Agent.TrustWorkspace = modes[0].mode, trusted
			all := &allower{Recorder: f.Out, t: t}
			c := f.startWith(all)
			all.respond = c.Respond
			for i, tt := range modes {
				all.asked = nil
				if i > 0 {
					if err := c.SetMode(t.Context(), tt.mode); err != nil {
						t.Fatal(err)
					}
				}
				f.Prompt(c, "write-file `mode.txt`")
				f.Prompt(c, "run-command `touch mode`")
				if !slices.Equal(all.asked, tt.asked) {
					t.Errorf("%s: asked for %q, want %q", tt.mode, all.asked, tt.asked)
				}
				for _, file := range []string{"mode.txt", "mode"} {
					if f.Exists(file) != tt.works {
						t.Errorf("%s: %s is there: %v", tt.mode, file, !tt.works)
					}
					if err := os.RemoveAll(f.WorkspaceFile(file)); err != nil {
						t.Fatal(err)
					}
				}
			}
			f.SameAsTranscript()
		})
	}
}

func TestAChangeAllowedForTheSessionIsMadeAndNotAskedAgain(t *testing.T) {
	t.Parallel()
	for _, trusted := range []bool{false, true} {
		t.Run(fmt.Sprintf("trusted %v", trusted), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Session.Agent.TrustWorkspace = trusted
			c := f.Start()
			wait := f.PromptAsync(c, "write-file `first.txt`")
			if err := c.Respond(t.Context(), f.Asked().ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways}); err != nil {
				t.Fatal(err)
			}
			if _, err := wait(); err != nil || !f.Exists("first.txt") {
				t.Fatalf("the file is there: %v, %v", f.Exists("first.txt"), err)
			}
			f.Prompt(c, "write-file `second.txt`")
			if n := len(f.Requests()); !f.Exists("second.txt") || n != 1 {
				t.Errorf("the second file is there: %v, asked %d times", f.Exists("second.txt"), n)
			}
			f.SameAsTranscript()
			// A command needs its own permission, because it is another kind of tool call.
			wait = f.PromptAsync(c, "run-command `touch third`")
			if err := c.Respond(t.Context(), f.AskedAgain(1).ID, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}); err != nil {
				t.Fatal(err)
			}
			if _, err := wait(); err != nil || f.Exists("third") {
				t.Errorf("the command ran: %v, %v", f.Exists("third"), err)
			}
		})
	}
}

// allower is a recorder that allows each permission request and records its title. It answers from
// its own goroutine, as a client does: a sink must not call its sender.
type allower struct {
	*agenttest.Recorder
	respond func(context.Context, string, runnerscripts.PermissionDecision) error
	t       *testing.T

	mu    sync.Mutex
	asked []string
}

func (a *allower) Emit(conv string, typ runnerscripts.EventType, payload any) {
	a.Recorder.Emit(conv, typ, payload)
	req, ok := payload.(runnerscripts.PermissionRequest)
	if !ok {
		return
	}
	a.mu.Lock()
	a.asked = append(a.asked, req.ToolCall.Title)
	a.mu.Unlock()
	answered := make(chan struct{})
	a.t.Cleanup(func() { <-answered })
	go func() {
		defer close(answered)
		if err := a.respond(a.t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
			a.t.Error(err)
		}
	}()
}

func TestModeAndModelChangeMidway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	f.Prompt(c, "plain-text")
	if got := f.LastRequest().Model; got != testModel {
		t.Errorf("the first model is %q", got)
	}
	if err := c.SetMode(t.Context(), modePlan); err != nil {
		t.Fatal(err)
	}
	if err := c.SetMode(t.Context(), modeAutoEdit); err != nil {
		t.Fatal(err)
	}
	if err := c.SetModel(t.Context(), "gemini-2.5-flash"); err != nil {
		t.Fatal(err)
	}
	f.Prompt(c, "write-file `notes.txt`") // the first mode would ask
	if got := f.LastRequest().Model; got != "gemini-2.5-flash" {
		t.Errorf("the second model is %q", got)
	}
	if !f.Exists("notes.txt") {
		t.Error("the file is not written")
	}
	modes := agenttest.Payloads[runnerscripts.ModeUpdate](t, f.Out.All(), runnerscripts.TypeModeUpdate)
	if len(modes) != 2 || modes[0].CurrentModeID != modePlan || modes[1].CurrentModeID != modeAutoEdit {
		t.Errorf("modes: %+v", modes)
	}
	if got := agenttest.Said(t, f.Out.All()); strings.Contains(got, "MODE_UPDATE") {
		t.Errorf("the agent said %q", got)
	}
	if err := c.SetMode(t.Context(), "no-such-mode"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("an unknown mode: %v", err)
	}
}

func TestFailureOfTheAPIFailsTheQueryWithItsStatus(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	f.Prompt(c, "first plain-text")
	for word, status := range map[string]int{"http-400": 400, "http-401": 401} {
		_, err := c.Prompt(t.Context(), "q", word)
		failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
		if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != status ||
			!strings.Contains(failure.Message, "scripted failure") {
			t.Fatalf("%s: error %#v", word, err)
		}
	}
	f.Prompt(c, "remember")
	if got := agenttest.Said(t, f.Out.All()); !strings.Contains(got, "before: first plain-text") {
		t.Errorf("the agent said %q", got)
	}
	f.SameAsTranscript()
}

func TestRetriesOfTheAPIAreTold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	// The user's own settings are kept: two tries instead of ten.
	agenttest.WriteFile(t, filepath.Join(configDir(f.Session), "settings.json"), `{"general":{"maxAttempts":2}}`)
	c := f.Start()
	_, err := c.Prompt(t.Context(), "q", "http-529")
	failure, ok := errors.AsType[*runnerscripts.ScriptFailure](err)
	if !ok || failure.Code != runnerscripts.FailAPI || failure.HTTPStatus != 503 {
		t.Errorf("error %#v", err)
	}
	logs := agenttest.Payloads[runnerscripts.Log](t, f.Out.All(), runnerscripts.TypeLog)
	if len(logs) == 0 || !strings.Contains(logs[0].Message, "status 503") {
		t.Errorf("logs: %+v", logs)
	}
	f.Prompt(c, "plain-text")
}
