package gemini

import (
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

func TestAnswerThatTheProgramThrowsAwayFailsTheQuery(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.Start()
	f.Prompt(c, "first plain-text")
	if done, err := c.Prompt(t.Context(), "query", "broken"); !agenttest.HasCode(err, runnerscripts.FailAPI) {
		t.Errorf("ended with %q, %v", done.StopReason, err)
	}
	f.Prompt(c, "last plain-text")
	if got := agenttest.Said(t, f.Out.All()); strings.Contains(got, "This answer") {
		t.Errorf("the agent said %q", got)
	}
	f.SameAsTranscript()
}

func TestToolCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = modeYOLO
	c := f.Start()
	for command, want := range map[string]runnerscripts.ToolStatus{
		"echo one; echo two":         runnerscripts.ToolCompleted,
		"echo one; echo two; exit 3": runnerscripts.ToolFailed,
	} {
		f.Prompt(c, "run-command `"+command+"`")
		call := f.lastCall()
		if call.Status != want || len(call.Content) != 1 || call.Content[0].Content == nil || call.Content[0].Content.Text != "one\ntwo" {
			t.Errorf("%s: %s", command, agenttest.Show(t, call))
		}
	}
	f.Prompt(c, "please write-file `notes.txt`")
	if call := f.lastCall(); call.Title != "Writing to notes.txt" || call.Name != "write_file" || !strings.Contains(string(call.RawInput), `"notes.txt"`) {
		t.Errorf("of a file: %s", agenttest.Show(t, call))
	}
	// A new file has no text before, which differs from an empty one.
	if call := f.lastCall(); len(call.Locations) != 1 || len(call.Content) != 1 || call.Content[0].OldText != nil {
		t.Errorf("a new file: %s", agenttest.Show(t, call))
	}
	f.SameAsTranscript()
	f.Prompt(c, "call-tool `no_such_tool {}`")
	if call := f.lastCall(); call.Title != "no_such_tool" || call.Status != runnerscripts.ToolFailed {
		t.Errorf("of a tool that does not exist: %s", agenttest.Show(t, call))
	}
}
