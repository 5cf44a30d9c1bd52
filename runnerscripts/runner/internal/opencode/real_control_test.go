package opencode

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestPermissionDecides(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		decision runnerscripts.PermissionDecision
		status   runnerscripts.ToolStatus
		stop     runnerscripts.StopReason
		told     string // what the model is told; empty if it is not asked again
	}{
		{
			"allowed once",
			runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce},
			runnerscripts.ToolCompleted, runnerscripts.StopEndTurn, "no output",
		},
		{
			"allowed by option",
			runnerscripts.PermissionDecision{OptionID: replyOnce},
			runnerscripts.ToolCompleted, runnerscripts.StopEndTurn, "no output",
		},
		{
			"rejected",
			runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce},
			runnerscripts.ToolFailed, runnerscripts.StopEndTurn, "The user did not allow this.",
		},
		{
			"rejected with a message",
			runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "not today"},
			runnerscripts.ToolFailed, runnerscripts.StopEndTurn, "not today",
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
			wait := f.promptAsync(c, "run-command `touch asked`")
			req := f.asked()
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
			if want := tt.status == runnerscripts.ToolCompleted; f.exists("asked") != want {
				t.Errorf("the command ran: %v", !want)
			}
			call := agenttest.Fold(t, f.out.All()).Blocks[2].Tool
			if call.Status != tt.status || call.ToolCallID != req.ToolCall.ToolCallID {
				t.Errorf("call: %s", agenttest.Show(t, call))
			}
			results := strings.Join(f.lastRequest().Results, " ")
			if !strings.Contains(results, tt.told) || tt.told == "" && results != "" {
				t.Errorf("the model was told %q", results)
			}
			resolved := agenttest.Payloads[runnerscripts.PermissionResolved](t, f.out.All(), runnerscripts.TypePermissionResolved)
			if len(resolved) != 1 || resolved[0].ID != req.ID || resolved[0].Reason != "answered" {
				t.Errorf("resolved: %+v", resolved)
			}
			if err := c.Respond(t.Context(), req.ID, tt.decision); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
				t.Errorf("a second answer: %v", err)
			}
			f.sameAsTranscript()
		})
	}
}

func TestAnotherInputThanTheOneThatIsAskedForIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.promptAsync(c, "write-file `asked.txt`")
	req := f.asked()
	if call := req.ToolCall; call.Title != "write asked.txt" || len(call.Content) != 1 || call.Content[0].Path != f.workspaceFile("asked.txt") {
		t.Errorf("request: %s", agenttest.Show(t, req))
	}
	err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{
		Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"filePath":"another.txt"}`),
	})
	if !agenttest.HasCode(err, runnerscripts.FailUnsupported) || !strings.Contains(err.Error(), "updated_input") {
		t.Errorf("error %v", err)
	}
	// The question still waits.
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}); err != nil {
		t.Error(err)
	}
	if _, err := wait(); err != nil {
		t.Error(err)
	}
	if f.exists("asked.txt") {
		t.Error("the file was written")
	}
}

func TestAllowForTheSessionAsksNoMore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.promptAsync(c, "run-command `touch always`")
	req := f.asked()
	if len(req.Options) != 3 || req.Options[1].Name != "Allow for this session: bash touch *" {
		t.Errorf("options: %+v", req.Options)
	}
	f.answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways})
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.workspaceFile("always")); err != nil {
		t.Fatal(err)
	}
	f.prompt(c, "run-command `touch always`")
	if !f.exists("always") {
		t.Error("the command did not run again")
	}
	if n := len(agenttest.Payloads[runnerscripts.PermissionRequest](t, f.out.All(), runnerscripts.TypePermissionRequest)); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestFileOutsideTheWorkspaceIsAskedForEvenIfEditsAreAccepted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.PermissionMode = modeAcceptEdits
	outside := t.TempDir() + "/outside.txt"
	c := f.start()
	wait := f.promptAsync(c, "write-file `"+outside+"`")
	f.answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce})
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(outside); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file outside: %v", err)
	}
}

func TestQuestionOfTheAgentIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.promptAsync(c, "ask-user")
	req := f.asked()
	if req.ToolCall.Title != "Which colour?" || !strings.Contains(string(req.ToolCall.RawInput), "The cold one") {
		t.Fatalf("request %s", agenttest.Show(t, req))
	}
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("no answer at all: %v", err)
	}
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{
		Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"answers":[["Blue"]]}`),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if got := f.lastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "Blue") {
		t.Errorf("the model was told %q", got)
	}
	f.sameAsTranscript()
}

func TestInterruptMidStreamLeavesTheSessionUsable(t *testing.T) {
	t.Parallel()
	for scenario, typ := range map[string]runnerscripts.EventType{
		"slow-stream": runnerscripts.TypeAgentMessage, "slow-think": runnerscripts.TypeAgentThought,
	} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.start()
			wait := f.promptAsync(c, scenario)
			f.held(typ)
			if err := c.Interrupt(t.Context()); err != nil {
				t.Fatal(err)
			}
			done, err := wait()
			if err != nil || done.StopReason != runnerscripts.StopCancelled {
				t.Fatalf("ended with %q, %v", done.StopReason, err)
			}
			if text := agenttest.Said(t, f.out.All()); strings.Contains(text, "six") {
				t.Errorf("the agent said %q", text)
			}
			for range 2 { // an end that is late must not end the next one
				if done := f.prompt(c, "remember"); done.StopReason != runnerscripts.StopEndTurn {
					t.Errorf("the next prompt ended with %q", done.StopReason)
				}
			}
			f.sameAsTranscript()
			if err := c.Interrupt(t.Context()); err != nil {
				t.Errorf("without a query: %v", err)
			}
		})
	}
}

func TestInterruptRightAfterThePromptIsNotLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.promptAsync(c, "slow-stream")
	f.out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeUserMessage))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	done, err := wait()
	if err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	f.prompt(c, "plain-text")
}

func TestInterruptStopsACommand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.PermissionMode = modeAuto
	c := f.start()
	wait := f.promptAsync(c, "run-command `touch started; exec sleep 600`")
	f.out.Wait(t.Context(), t, agenttest.OfType(runnerscripts.TypeToolCall))
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	f.sameAsTranscript()
}

func TestInterruptWithdrawsThePermissionRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.promptAsync(c, "run-command `touch asked`")
	req := f.asked()
	if err := c.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopCancelled {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	resolved := agenttest.Payloads[runnerscripts.PermissionResolved](t, f.out.All(), runnerscripts.TypePermissionResolved)
	if len(resolved) != 1 || resolved[0] != (runnerscripts.PermissionResolved{ID: req.ID, Reason: "cancelled"}) {
		t.Errorf("resolved: %+v", resolved)
	}
	if f.exists("asked") {
		t.Error("the command ran")
	}
	f.sameAsTranscript()
}

func TestModeAndModelChangeMidway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	f.prompt(c, "plain-text")
	if got := f.lastRequest().Model; got != "small" {
		t.Errorf("the first model is %q", got)
	}
	if err := c.SetMode(t.Context(), modeAcceptEdits); err != nil {
		t.Fatal(err)
	}
	if err := c.SetModel(t.Context(), secondModel); err != nil {
		t.Fatal(err)
	}
	f.prompt(c, "write-file `notes.txt`") // would ask in the first mode
	if got := f.lastRequest().Model; got != "large" {
		t.Errorf("the second model is %q", got)
	}
	if !f.exists("notes.txt") {
		t.Error("the file is not written")
	}
	modes := agenttest.Payloads[runnerscripts.ModeUpdate](t, f.out.All(), runnerscripts.TypeModeUpdate)
	if len(modes) != 1 || modes[0].CurrentModeID != modeAcceptEdits {
		t.Errorf("modes: %+v", modes)
	}
	if err := c.SetMode(t.Context(), "no-such-mode"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), modePlan) {
		t.Errorf("an unknown mode: %v", err)
	}
	for _, model := range []string{"scripted/none", "large"} {
		if err := c.SetModel(t.Context(), model); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
			t.Errorf("the unknown model %q: %v", model, err)
		}
	}
}

func TestPlanModeWritesNoFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.PermissionMode = modePlan
	f.prompt(f.start(), "write-file `notes.txt`")
	if f.exists("notes.txt") {
		t.Error("the file is written")
	}
	if asked := agenttest.Payloads[runnerscripts.PermissionRequest](t, f.out.All(), runnerscripts.TypePermissionRequest); len(asked) > 0 {
		t.Errorf("asked: %+v", asked)
	}
}

func TestFailureOfTheAPIFailsTheQuery(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text    string
		status  int // the program does not tell that of a failure that it tries again
		retries int
	}{{"http-400", 400, 0}, {"http-529", 0, 2}} {
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
			if text := agenttest.Said(t, f.out.All()); text != "" {
				t.Errorf("the agent said %q", text)
			}
			if logs := agenttest.Payloads[runnerscripts.Log](t, f.out.All(), runnerscripts.TypeLog); len(logs) != tt.retries {
				t.Errorf("logs: %+v", logs)
			}
			f.prompt(c, "plain-text")
			f.sameAsTranscript()
		})
	}
}

func TestCrashFailsTheQueryAndTheNextOneGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	f.prompt(c, "first plain-text")
	wait := f.promptAsync(c, "run-command `touch asked`")
	req := f.asked()
	first := c.server.proc.PID()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); !agenttest.HasCode(err, runnerscripts.FailAgent) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("error %v", err)
	}
	resolved := agenttest.Payloads[runnerscripts.PermissionResolved](t, f.out.All(), runnerscripts.TypePermissionResolved)
	if len(resolved) != 1 || resolved[0].ID != req.ID || resolved[0].Kind != "" {
		t.Errorf("resolved: %+v", resolved)
	}
	f.prompt(c, "remember")
	if second := c.server.proc.PID(); second == first {
		t.Error("the process did not change")
	}
	if text := agenttest.Said(t, f.out.All()); !strings.Contains(text, "You said before: first plain-text") {
		t.Errorf("the agent said %q", text)
	}
}

func TestCloseEndsARunningQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	wait := f.promptAsync(c, "slow-stream")
	f.held(runnerscripts.TypeAgentMessage)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := wait(); !agenttest.HasCode(err, runnerscripts.FailAgent) {
		t.Errorf("error %v", err)
	}
	if err := syscall.Kill(-c.server.proc.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("its process group is still there: %v", err)
	}
	if _, err := c.Prompt(t.Context(), "q", "plain-text"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		t.Errorf("a prompt after close: %v", err)
	}
}
