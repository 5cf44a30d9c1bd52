package codex

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestChangeOfAFileShowsTheLinesBeforeAndAfter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "full-access"
	agenttest.WriteFile(t, f.WorkspaceFile("notes.txt"), "first\nold\nlast\n")
	f.Prompt(f.start(), "edit-file `notes.txt`")
	call := agenttest.Fold(t, f.Out.All()).Blocks[2].Tool
	if call == nil || call.Title != "Edit notes.txt" || len(call.Content) != 1 || call.Content[0].OldText == nil {
		t.Fatalf("call: %s", agenttest.Show(t, call))
	}
	if c := call.Content[0]; *c.OldText != "first\nold\nlast\n" || c.NewText != "first\nnew\nlast\n" {
		t.Errorf("content: %s", agenttest.Show(t, c))
	}
	if len(call.Locations) != 1 || call.Locations[0].Path != f.WorkspaceFile("notes.txt") || call.Locations[0].Line != 1 {
		t.Errorf("locations: %+v", call.Locations)
	}
	f.SameAsTranscript()
}

func TestCommandTellsItsStatusAndOutput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "full-access"
	f.Prompt(f.start(), "run-command `printf 'it''s out'; exit 3`")
	call := agenttest.Fold(t, f.Out.All()).Blocks[2].Tool
	if call == nil || call.Title != "printf 'it''s out'; exit 3" || call.Kind != runnerscripts.ToolExecute ||
		call.Status != runnerscripts.ToolFailed {
		t.Fatalf("call: %s", agenttest.Show(t, call))
	}
	if len(call.Content) != 1 || call.Content[0].Content.Text != "its out" {
		t.Errorf("content: %s", agenttest.Show(t, call.Content))
	}
	if want := `{"exitCode":3,"output":"its out"}`; string(call.RawOutput) != want {
		t.Errorf("raw output %s, want %s", call.RawOutput, want)
	}
	f.SameAsTranscript()
}

func TestNothingIsWrittenIntoTheWorkspace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "full-access"
	f.Prompt(f.start(), "subagent")
	entries, err := os.ReadDir(f.Session.Paths.Workspace)
	if err != nil || len(entries) != 0 {
		t.Errorf("in the workspace: %v, %v", entries, err)
	}
	found, err := filepath.Glob(filepath.Join(configDir(f.Session), "sessions", "*", "*", "*", "*.jsonl"))
	if err != nil || len(found) != 2 {
		t.Errorf("the transcripts are not in the session's own folder: %v, %v", found, err)
	}
}
