package codex

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

func TestWritesAFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "full-access"
	done := f.Prompt(f.start(), "please write-file `notes.txt`")
	if done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("stop reason %q", done.StopReason)
	}
	data, err := os.ReadFile(f.WorkspaceFile("notes.txt"))
	if err != nil || string(data) != "hello from the scripted model\n" {
		t.Errorf("file: %q, %v", data, err)
	}
	blocks := agenttest.Fold(t, f.Out.All()).Blocks
	if len(blocks) != 4 {
		t.Fatalf("blocks: %s", agenttest.Show(t, blocks))
	}
	call := blocks[2].Tool
	if call == nil || call.Kind != runnerscripts.ToolEdit || call.Status != runnerscripts.ToolCompleted || call.Title != "Write notes.txt" {
		t.Fatalf("tool call: %s", agenttest.Show(t, call))
	}
	if len(call.Locations) != 1 || call.Locations[0].Path != f.WorkspaceFile("notes.txt") {
		t.Errorf("locations: %v", call.Locations)
	}
	if len(call.Content) != 1 || call.Content[0].Type != "diff" || call.Content[0].OldText != nil ||
		call.Content[0].NewText != "hello from the scripted model\n" {
		t.Errorf("content: %s", agenttest.Show(t, call.Content))
	}
	init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.Out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 1 || init[0].Mode != "full-access" || init[0].AgentVersion != testedVersion || init[0].Model != testModel || init[0].Resumed {
		t.Errorf("session_initialized: %+v", init)
	}
	f.SameAsTranscript()
}

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

func usageOf(requests []llmapi.Request) runnerscripts.Usage {
	var sum runnerscripts.Usage
	for _, r := range requests {
		sum = sum.Add(runnerscripts.Usage{
			InputTokens: r.Usage.InputTokens, OutputTokens: r.Usage.OutputTokens,
			CacheReadTokens: r.Usage.CacheReadTokens, CacheWriteTokens: r.Usage.CacheWriteTokens,
		})
	}
	return sum
}

func TestUsageIsThatOfTheQueryAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "full-access"
	c := f.start()
	seen := 0
	for _, text := range []string{"two-tools", "plain-text", "subagent"} {
		got := f.Prompt(c, text).Usage
		requests := f.API.Requests()
		if want := usageOf(requests[seen:]); got != want || want.InputTokens == 0 {
			t.Errorf("%s: usage\n got %+v\nwant %+v", text, got, want)
		}
		seen = len(requests)
	}
	updates := agenttest.Payloads[runnerscripts.UsageUpdate](t, f.Out.All(), runnerscripts.TypeUsageUpdate)
	if len(updates) == 0 || updates[len(updates)-1].Used < 15_000 || updates[len(updates)-1].Size == 0 {
		t.Errorf("usage updates: %+v", updates)
	}
}

func TestSubagentHasAConversationOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "full-access"
	done := f.Prompt(f.start(), "subagent")
	if done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("stop reason %q", done.StopReason)
	}
	got := agenttest.Fold(t, f.Out.All())
	if len(got.Subagents) != 1 {
		t.Fatalf("subagents: %s", agenttest.Show(t, got.Subagents))
	}
	sub := got.Subagents[0]
	if sub.Prompt != "Please do the subwork `echo subagent`" || sub.AgentID == "" ||
		sub.Status != session.SubagentCompleted || sub.Output != "The subagent has done its work." {
		t.Errorf("the subagent: %s", agenttest.Show(t, sub))
	}
	blocks := sub.Blocks
	if len(blocks) != 4 || blocks[2].Tool == nil || blocks[2].Tool.Title != "echo subagent" {
		t.Errorf("its conversation: %s", agenttest.Show(t, blocks))
	}
	tr, _ := f.Transcript()
	if len(tr.Subagents) != 1 || tr.Subagents[0].ID != sub.AgentID {
		t.Errorf("the transcript's subagents do not have the id %q", sub.AgentID)
	}
	f.SameAsTranscript()
}

func TestTwoToolsInOneMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "full-access"
	f.Prompt(f.start(), "two-tools")
	f.SameAsTranscript()
	calls := 0
	for _, b := range agenttest.Fold(t, f.Out.All()).Blocks {
		if b.Tool != nil && b.Tool.Status == runnerscripts.ToolCompleted {
			calls++
		}
	}
	if calls != 2 {
		t.Errorf("%d completed calls", calls)
	}
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
