package opencode

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func permissionSteps() []step {
	return []step{
		{"rejected", func(f *fixture, c *conversation) { f.rejects(c, "", "The user did not allow this.") }},
		{"rejected with a message", func(f *fixture, c *conversation) { f.rejects(c, "not today", "not today") }},
		{"allowed for the session", allowsForTheSession},
		{"a question of the agent", asksTheUser},
		{"a question that is not answered", asksNobody},
		{"a file outside of the workspace", refusesAFileOutside},
	}
}

// rejects answers a command with a rejection and its message. It checks that the model receives told.
func (f *fixture) rejects(c *conversation, message, told string) {
	f.Helper()
	wait := f.PromptAsync(c, "run-command `touch asked`")
	f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: message})
	if _, err := wait(); err != nil {
		f.Error(err)
	}
	if got := f.LastRequest().Results; len(got) == 0 || !strings.Contains(got[len(got)-1], told) {
		f.Errorf("the model was told %q", got)
	}
}

func allowsForTheSession(f *fixture, c *conversation) {
	wait := f.PromptAsync(c, "run-command `mkdir always`")
	req := f.Asked()
	if len(req.Options) != 3 || req.Options[1].Name != "Allow for this session: bash mkdir *" {
		f.Errorf("options: %+v", req.Options)
	}
	f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways})
	if _, err := wait(); err != nil {
		f.Fatal(err)
	}
	if err := os.Remove(f.WorkspaceFile("always")); err != nil {
		f.Fatal(err)
	}
	f.Prompt(c, "run-command `mkdir always`")
	if !f.Exists("always") {
		f.Error("the command did not run again")
	}
	if n := len(f.Requests()); n != 1 {
		f.Errorf("asked %d times", n)
	}
}

func asksTheUser(f *fixture, c *conversation) {
	wait := f.PromptAsync(c, "ask-user")
	req := f.Asked()
	if req.ToolCall.Title != "Which colour?" || !strings.Contains(string(req.ToolCall.RawInput), "The cold one") {
		f.Fatalf("request %s", agenttest.Show(f, req))
	}
	allow := runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce, UpdatedInput: json.RawMessage(`{"answer":"Blue"}`)}
	if err := c.Respond(f.Context(), req.ID, allow); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
		f.Errorf("an answer of another form: %v", err)
	}
	allow.UpdatedInput = json.RawMessage(`{"answers":[["Blue"]]}`)
	f.Answer(c, allow)
	if _, err := wait(); err != nil {
		f.Fatal(err)
	}
	if got := f.LastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "Blue") {
		f.Errorf("the model was told %q", got)
	}
}

// asksNobody allows a question without an answer, like a client that allows everything.
func asksNobody(f *fixture, c *conversation) {
	wait := f.PromptAsync(c, "ask-user")
	f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
	if done, err := wait(); err != nil || done.StopReason != runnerscripts.StopEndTurn {
		f.Fatalf("ended with %q, %v", done.StopReason, err)
	}
	if got := f.LastRequest().Results; len(got) != 1 || !strings.Contains(got[0], "Unanswered") {
		f.Errorf("the model was told %q", got)
	}
}

// refusesAFileOutside tries to access files outside of the workspace, by path and by link. It tries
// after the user has allowed all file changes for the session, and in the mode that never asks.
func refusesAFileOutside(f *fixture, c *conversation) {
	wait := f.PromptAsync(c, "write-file `inside.txt`")
	f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowAlways})
	if _, err := wait(); err != nil {
		f.Fatal(err)
	}
	f = f.in(f.TB)
	dir := f.TempDir()
	if err := os.Symlink(dir, f.WorkspaceFile("link")); err != nil {
		f.Fatal(err)
	}
	agenttest.WriteFile(f, filepath.Join(dir, "secret.txt"), "the secret")
	refused := func(prompt string) {
		f.Helper()
		f.Prompt(c, prompt)
		if got := strings.Join(f.LastRequest().Results, " "); strings.Contains(got, "the secret") || !strings.Contains(got, "outside of the workspace") {
			f.Errorf("%s: the model was told %q", prompt, got)
		}
	}
	refused("write-file `link/outside.txt`")
	f.Prompt(c, "write-file `second.txt`")
	if err := c.SetMode(f.Context(), modeAuto); err != nil {
		f.Fatal(err)
	}
	refused("write-file `" + filepath.Join(dir, "outside.txt") + "`")
	refused("call-tool `read {\"filePath\":\"" + filepath.Join(dir, "secret.txt") + "\"}`")
	refused("call-tool `read {\"filePath\":\"link/secret.txt\"}`")
	refused("call-tool `grep {\"pattern\":\"secret\",\"path\":\"link\"}`")
	if _, err := os.Stat(filepath.Join(dir, "outside.txt")); !errors.Is(err, os.ErrNotExist) {
		f.Errorf("the file outside: %v", err)
	}
	if !f.Exists("inside.txt") || !f.Exists("second.txt") {
		f.Error("the files inside are not written")
	}
	f.unasked()
}
