package opencode

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestPermissionDecides(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start()
	var steps []step
	for _, d := range []struct {
		name     string
		decision runnerscripts.PermissionDecision
		status   runnerscripts.ToolStatus
		stop     runnerscripts.StopReason
		told     string // the result in the next request to the model; empty if there is none
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
	} {
		steps = append(steps, step{d.name, func(f *fixture, c *conversation) { f.checkDecision(c, d.decision, d.status, d.stop, d.told) }})
	}
	f.each(c, append(steps, []step{
		{"another input is refused", refusesAnotherInput},
		{"allowed for the session", allowsForTheSession},
		{"requested by a subagent", asksAsASubagent},
		{"a question of the agent", asksTheUser},
		{"a question that is not answered", asksNobody},
		{"a file outside of the workspace", refusesAFileOutside},
	}...))
}

func (f *fixture) checkDecision(
	c *conversation, d runnerscripts.PermissionDecision, status runnerscripts.ToolStatus, stop runnerscripts.StopReason, told string,
) {
	f.t.Helper()
	_ = os.Remove(f.workspaceFile("asked")) // left by the previous decision
	wait := f.promptAsync(c, "run-command `touch asked`")
	req := f.asked()
	if req.ToolCall.Title != "touch asked" || req.ToolCall.Status != runnerscripts.ToolPending || req.ToolCall.Kind != runnerscripts.ToolExecute {
		f.t.Errorf("request: %s", agenttest.Show(f.t, req))
	}
	if err := c.Respond(f.t.Context(), req.ID, d); err != nil {
		f.t.Fatal(err)
	}
	done, err := wait()
	if err != nil || done.StopReason != stop {
		f.t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	if want := status == runnerscripts.ToolCompleted; f.exists("asked") != want {
		f.t.Errorf("the command ran: %v", !want)
	}
	if call := f.call(); call.Status != status || call.ToolCallID != req.ToolCall.ToolCallID {
		f.t.Errorf("call: %s", agenttest.Show(f.t, call))
	}
	results := strings.Join(f.lastRequest().Results, " ")
	if !strings.Contains(results, told) || told == "" && results != "" {
		f.t.Errorf("the model was told %q", results)
	}
	resolved := agenttest.Payloads[runnerscripts.PermissionResolved](f.t, f.events(), runnerscripts.TypePermissionResolved)
	if len(resolved) != 1 || resolved[0].ID != req.ID || resolved[0].Reason != "answered" {
		f.t.Errorf("resolved: %+v", resolved)
	}
	if err := c.Respond(f.t.Context(), req.ID, d); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		f.t.Errorf("a second answer: %v", err)
	}
}

func refusesAnotherInput(f *fixture, c *conversation) {
	wait := f.promptAsync(c, "write-file `asked.txt`")
	req := f.asked()
	if call := req.ToolCall; call.Title != "write asked.txt" || len(call.Content) != 1 || call.Content[0].Path != f.workspaceFile("asked.txt") {
		f.t.Errorf("request: %s", agenttest.Show(f.t, req))
	}
	err := c.Respond(f.t.Context(), req.ID, runnerscripts.PermissionDecision{
		Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"filePath":"another.txt"}`),
	})
	if !agenttest.HasCode(err, runnerscripts.FailUnsupported) || !strings.Contains(err.Error(), "updated_input") {
		f.t.Errorf("error %v", err)
	}
	// The request is still pending.
	if err := c.Respond(f.t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce}); err != nil {
		f.t.Error(err)
	}
	if _, err := wait(); err != nil {
		f.t.Error(err)
	}
	if f.exists("asked.txt") {
		f.t.Error("the file was written")
	}
}

func allowsForTheSession(f *fixture, c *conversation) {
	wait := f.promptAsync(c, "run-command `mkdir always`")
	req := f.asked()
	if len(req.Options) != 3 || req.Options[1].Name != "Allow for this session: bash mkdir *" {
		f.t.Errorf("options: %+v", req.Options)
	}
	f.answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways})
	if _, err := wait(); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Remove(f.workspaceFile("always")); err != nil {
		f.t.Fatal(err)
	}
	f.prompt(c, "run-command `mkdir always`")
	if !f.exists("always") {
		f.t.Error("the command did not run again")
	}
	if n := len(agenttest.Payloads[runnerscripts.PermissionRequest](f.t, f.events(), runnerscripts.TypePermissionRequest)); n != 1 {
		f.t.Errorf("asked %d times", n)
	}
}

func asksAsASubagent(f *fixture, c *conversation) {
	wait := f.promptAsync(c, "subagent `touch by-subagent`")
	e := f.wait(agenttest.OfType(runnerscripts.TypePermissionRequest))
	req := agenttest.Payload[runnerscripts.PermissionRequest](f.t, e)
	subs := agenttest.Fold(f.t, f.events()).Subagents
	if len(subs) != 1 || e.ConversationID != subs[0].ToolCallID || req.ToolCall.Title != "touch by-subagent" {
		f.t.Errorf("request in %q: %s", e.ConversationID, agenttest.Show(f.t, req))
	}
	f.answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
	if _, err := wait(); err != nil {
		f.t.Fatal(err)
	}
	if !f.exists("by-subagent") {
		f.t.Error("the command did not run")
	}
	for _, e := range f.events() {
		if e.Type == runnerscripts.TypePermissionResolved && e.ConversationID != subs[0].ToolCallID {
			f.t.Errorf("resolved in %q", e.ConversationID)
		}
	}
}

func asksTheUser(f *fixture, c *conversation) {
	wait := f.promptAsync(c, "ask-user")
	req := f.asked()
	if req.ToolCall.Title != "Which colour?" || !strings.Contains(string(req.ToolCall.RawInput), "The cold one") {
		f.t.Fatalf("request %s", agenttest.Show(f.t, req))
	}
	allow := runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"answer":"Blue"}`)}
	if err := c.Respond(f.t.Context(), req.ID, allow); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		f.t.Errorf("an answer of another form: %v", err)
	}
	allow.UpdatedInput = json.RawMessage(`{"answers":[["Blue"]]}`)
	f.answer(c, allow)
	if _, err := wait(); err != nil {
		f.t.Fatal(err)
	}
	if got := f.lastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "Blue") {
		f.t.Errorf("the model was told %q", got)
	}
}

// asksNobody allows a question without an answer, like a client that allows everything.
func asksNobody(f *fixture, c *conversation) {
	wait := f.promptAsync(c, "ask-user")
	f.answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopEndTurn {
		f.t.Fatalf("ended with %q, %v", done.StopReason, err)
	}
	if got := f.lastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "Unanswered") {
		f.t.Errorf("the model was told %q", got)
	}
}

// refusesAFileOutside tries to access files outside of the workspace, by path and by link. It tries
// after the user has allowed all file changes for the session, and in the mode that never asks.
func refusesAFileOutside(f *fixture, c *conversation) {
	wait := f.promptAsync(c, "write-file `inside.txt`")
	f.answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways})
	if _, err := wait(); err != nil {
		f.t.Fatal(err)
	}
	f.mark = len(f.out.All())
	dir := f.t.TempDir()
	if err := os.Symlink(dir, f.workspaceFile("link")); err != nil {
		f.t.Fatal(err)
	}
	agenttest.WriteFile(f.t, filepath.Join(dir, "secret.txt"), "the secret")
	refused := func(prompt string) {
		f.t.Helper()
		f.prompt(c, prompt)
		if got := strings.Join(f.lastRequest().Results, " "); strings.Contains(got, "the secret") || !strings.Contains(got, "outside of the workspace") {
			f.t.Errorf("%s: the model was told %q", prompt, got)
		}
	}
	refused("write-file `link/outside.txt`")
	f.prompt(c, "write-file `second.txt`")
	if err := c.SetMode(f.t.Context(), modeAuto); err != nil {
		f.t.Fatal(err)
	}
	refused("write-file `" + filepath.Join(dir, "outside.txt") + "`")
	refused("call-tool `read {\"filePath\":\"" + filepath.Join(dir, "secret.txt") + "\"}`")
	refused("call-tool `read {\"filePath\":\"link/secret.txt\"}`")
	refused("call-tool `grep {\"pattern\":\"secret\",\"path\":\"link\"}`")
	if _, err := os.Stat(filepath.Join(dir, "outside.txt")); !errors.Is(err, os.ErrNotExist) {
		f.t.Errorf("the file outside: %v", err)
	}
	if !f.exists("inside.txt") || !f.exists("second.txt") {
		f.t.Error("the files inside are not written")
	}
	f.unasked()
}
