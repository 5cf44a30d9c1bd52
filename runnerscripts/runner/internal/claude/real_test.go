package claude

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

func TestBackgroundSubagentHasAConversationOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = bypassMode
	done := f.Prompt(f.Start(), "background")
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
