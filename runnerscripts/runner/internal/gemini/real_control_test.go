package gemini

import (
	"context"
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

func TestInterruptedAnswerIsTakenBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	f.Prompt(c, "first plain-text")
	for _, tt := range []struct {
		prompt string
		typ    runnerscripts.EventType
	}{{"slow-stream", runnerscripts.TypeAgentMessage}, {"slow-think", runnerscripts.TypeAgentThought}} {
		step := f.In(t)
		wait := step.PromptAsync(c, tt.prompt)
		if err := f.API.WaitHeld(t.Context()); err != nil {
			t.Fatal(err)
		}
		step.Wait(t.Context(), agenttest.OfType(tt.typ))
		if err := c.Interrupt(t.Context()); err != nil {
			t.Fatal(err)
		}
		if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
			t.Fatalf("%s: ended with %q, %v", tt.prompt, done.StopReason, err)
		}
		f.Prompt(c, "remember")
		// The program forgets the interrupted prompt and its answer.
		if got := step.Said(); strings.Contains(got, "One") || !strings.Contains(got, "before: first plain-text") {
			t.Errorf("%s: the agent said %q", tt.prompt, got)
		}
	}
	f.SameAsTranscript()
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
			c := f.StartWith(t.Context(), all)
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
