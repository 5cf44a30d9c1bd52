package gemini

import (
	"os"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestWritesAFileThatIsAllowed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	wait := f.PromptAsync(c, "please write-file `notes.txt`")
	req := f.Asked()
	if err := c.Respond(t.Context(), req.ID, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}); err != nil {
		t.Fatal(err)
	}
	done, err := wait()
	if err != nil || done.StopReason != runnerscripts.StopEndTurn {
		t.Errorf("ended with %q, %v", done.StopReason, err)
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
		call.Title != "Writing to notes.txt" || call.Name != "write_file" || !strings.Contains(string(call.RawInput), `"notes.txt"`) {
		t.Fatalf("tool call: %s", agenttest.Show(t, call))
	}
	if len(call.Locations) != 1 || call.Locations[0].Path != f.WorkspaceFile("notes.txt") {
		t.Errorf("locations: %v", call.Locations)
	}
	if len(call.Content) != 1 || call.Content[0].Type != "diff" || call.Content[0].OldText != nil ||
		call.Content[0].NewText != "hello from the scripted model\n" {
		t.Errorf("content: %s", agenttest.Show(t, call.Content))
	}
	f.SameAsTranscript()
}
