package claude

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

func TestWritesAFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = "acceptEdits"
	done := f.Prompt(f.Start(), "please write-file `notes.txt`")
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
	if call == nil || call.Kind != runnerscripts.ToolEdit || call.Status != runnerscripts.ToolCompleted ||
		call.Title != "Write notes.txt" || call.Name != "Write" {
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
	if len(init) != 1 || init[0].Mode != "acceptEdits" || init[0].AgentVersion == "" || init[0].Resumed {
		t.Errorf("session_initialized: %+v", init)
	}
	f.SameAsTranscript()
}

func TestThinkingAndTextOfOneMessageAreTwoBlocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Prompt(f.Start(), "think")
	f.SameAsTranscript()
	blocks := agenttest.Fold(t, f.Out.All()).Blocks
	if len(blocks) != 3 {
		t.Fatalf("blocks: %s", agenttest.Show(t, blocks))
	}
	thought, text := blocks[1], blocks[2]
	if thought.Kind != session.BlockThought || thought.Text != "Let me think about it. It is simple." {
		t.Errorf("thought: %+v", thought)
	}
	if text.Kind != session.BlockAgent || text.Text != "I have thought about it." {
		t.Errorf("text: %+v", text)
	}
	message := strings.TrimSuffix(thought.ID, "-0")
	if message == thought.ID || text.ID != message+"-1" {
		t.Errorf("ids %q and %q", thought.ID, text.ID)
	}
}

func TestUsageIsThatOfTheQueryAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = bypassMode
	c := f.Start()
	seen := 0
	for _, text := range []string{"two-tools", "plain-text", "subagent"} {
		got := f.Prompt(c, text).Usage
		var want runnerscripts.Usage
		for _, r := range f.API.Requests()[seen:] {
			seen++
			want = want.Add(runnerscripts.Usage{
				InputTokens: r.Usage.InputTokens, OutputTokens: r.Usage.OutputTokens,
				CacheReadTokens: r.Usage.CacheReadTokens, CacheWriteTokens: r.Usage.CacheWriteTokens,
			})
		}
		if got.CostUSD <= 0 || got.CostUSD > 0.05 {
			t.Errorf("%s: cost %v", text, got.CostUSD)
		}
		got.CostUSD = 0
		if got != want {
			t.Errorf("%s: usage\n got %+v\nwant %+v", text, got, want)
		}
	}
	updates := agenttest.Payloads[runnerscripts.UsageUpdate](t, f.Out.All(), runnerscripts.TypeUsageUpdate)
	if len(updates) == 0 || updates[len(updates)-1].Used < 15_000 || updates[len(updates)-1].Size == 0 {
		t.Errorf("usage updates: %+v", updates)
	}
}

func TestSubagentHasAConversationOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, scenario := range []string{"subagent", "background"} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.Session.Agent.PermissionMode = bypassMode
			done := f.Prompt(f.Start(), scenario)
			if done.StopReason != runnerscripts.StopEndTurn {
				t.Errorf("stop reason %q", done.StopReason)
			}
			got := agenttest.Fold(t, f.Out.All())
			if len(got.Subagents) != 1 {
				t.Fatalf("subagents: %s", agenttest.Show(t, got.Subagents))
			}
			sub := got.Subagents[0]
			if sub.Prompt != "Please do the subwork `echo subagent`" || sub.Type != "general-purpose" || sub.AgentID == "" ||
				sub.Status != session.SubagentCompleted || sub.DurationMS == 0 || sub.Output != "The subagent has done its work." {
				t.Errorf("the subagent: %s", agenttest.Show(t, sub))
			}
			blocks := sub.Blocks
			if len(blocks) != 4 || blocks[2].Tool == nil || blocks[2].Tool.Title != "echo subagent" {
				t.Errorf("its conversation: %s", agenttest.Show(t, blocks))
			}
			tr, stored := f.Transcript()
			agenttest.SameConversation(t, f.Out.All(), stored.All())
			if len(tr.Subagents) != 1 || tr.Subagents[0].ID != sub.AgentID {
				t.Errorf("the transcript's subagents do not have the id %q", sub.AgentID)
			}
		})
	}
}

func TestTwoToolsInOneMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = bypassMode
	f.Prompt(f.Start(), "two-tools")
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

func TestTurnLimitEndsTheQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.MaxTurns = 2
	f.Session.Agent.PermissionMode = bypassMode
	c := f.Start()
	for range 2 { // each query has a limit of its own
		before := len(f.API.Requests())
		if done := f.Prompt(c, "endless"); done.StopReason != runnerscripts.StopMaxRequests {
			t.Errorf("stop reason %q", done.StopReason)
		}
		if n := len(f.API.Requests()) - before; n != 2 {
			t.Errorf("%d requests", n)
		}
	}
}

func TestNothingIsWrittenOutsideTheSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = bypassMode
	f.Prompt(f.Start(), "subagent")
	entries, err := os.ReadDir(f.Session.Paths.Workspace)
	if err != nil || len(entries) != 0 {
		t.Errorf("in the workspace: %v, %v", entries, err)
	}
	tasks, err := filepath.Glob(filepath.Join(tempDir(f.Session), "claude-*", "*", f.Session.SessionID))
	if err != nil || len(tasks) != 1 {
		t.Errorf("the output of tasks is not in the session's own folder: %v, %v", tasks, err)
	}
}
