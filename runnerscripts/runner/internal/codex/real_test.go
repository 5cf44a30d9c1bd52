package codex

import (
	"os"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestWritesAFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.session.Agent.PermissionMode = "full-access"
	done := f.prompt(f.start(), "please write-file `notes.txt`")
	if done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("stop reason %q", done.StopReason)
	}
	data, err := os.ReadFile(f.workspaceFile("notes.txt"))
	if err != nil || string(data) != "hello from the scripted model\n" {
		t.Errorf("file: %q, %v", data, err)
	}
	blocks := agenttest.Fold(t, f.out.All()).Blocks
	if len(blocks) != 4 {
		t.Fatalf("blocks: %s", agenttest.Show(t, blocks))
	}
	call := blocks[2].Tool
	if call == nil || call.Kind != runnerscripts.ToolEdit || call.Status != runnerscripts.ToolCompleted || call.Title != "Write notes.txt" {
		t.Fatalf("tool call: %s", agenttest.Show(t, call))
	}
	if len(call.Locations) != 1 || call.Locations[0].Path != f.workspaceFile("notes.txt") {
		t.Errorf("locations: %v", call.Locations)
	}
	if len(call.Content) != 1 || call.Content[0].Type != "diff" || call.Content[0].OldText != nil ||
		call.Content[0].NewText != "hello from the scripted model\n" {
		t.Errorf("content: %s", agenttest.Show(t, call.Content))
	}
	init := agenttest.Payloads[runnerscripts.SessionInitialized](t, f.out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 1 || init[0].Mode != "full-access" || init[0].AgentVersion != testedVersion || init[0].Model != testModel || init[0].Resumed {
		t.Errorf("session_initialized: %+v", init)
	}
	f.sameAsTranscript()
}

func TestTextArrivesInPiecesWithAllItsWhiteSpace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.prompt(f.start(), "plain-text")
	const want = "Hello from the scripted model.\n\nThis is plain text: äöü, 日本語, 🙂."
	chunks := agenttest.Payloads[runnerscripts.ContentChunk](t, f.out.All(), runnerscripts.TypeAgentMessage)
	var text string
	for _, c := range chunks {
		if c.Snapshot {
			t.Errorf("a snapshot although the pieces said all: %+v", c)
		}
		text += c.Content.Text
	}
	if text != want || len(chunks) < 5 {
		t.Errorf("%d pieces: %q", len(chunks), text)
	}
	f.sameAsTranscript()
}
