package opencode

import (
	"os"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

func TestConversation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Session.Agent.PermissionMode = modeAcceptEdits
	f.Raw = true
	c := f.start()
	pid := c.server.proc.PID()
	f.each(t, c, []step{
		{"a file is written", writesAFile},
		{"the lines of a change are shown", showsAChange},
		{"raw lines come on request", givesRawLines},
		{"text arrives in pieces with all its white space", givesPieces},
		{"thinking and text of one message are two blocks", thinks},
		{"a plan is told", plans},
		{"mode and model change midway", changesModeAndModel},
		{"a command tells its status and output", runsACommand},
		{"two tools in one message", usesTwoTools},
		{"a subagent has a conversation of its own", handsOver},
		{"usage is that of the query alone", countsUsage},
		{"the plan mode writes no file", onlyPlans},
		{"what was said before is remembered, by the same process", func(f *fixture, c *conversation) {
			f.Prompt(c, "remember")
			if text := agenttest.Said(f, f.Events()); !strings.Contains(text, "You said before: please write-file") {
				f.Errorf("the agent said %q", text)
			}
			if got := c.server.proc.PID(); got != pid {
				f.Errorf("process %d, then %d", pid, got)
			}
		}},
	})
}

func writesAFile(f *fixture, c *conversation) {
	done := f.Prompt(c, "please write-file `notes.txt`")
	if done.StopReason != runnerscripts.StopEndTurn {
		f.Errorf("stop reason %q", done.StopReason)
	}
	data, err := os.ReadFile(f.WorkspaceFile("notes.txt"))
	if err != nil || string(data) != "hello from the scripted model\n" {
		f.Errorf("file: %q, %v", data, err)
	}
	if blocks := f.blocks(); len(blocks) != 4 {
		f.Fatalf("blocks: %s", agenttest.Show(f, blocks))
	}
	call := f.call()
	if call.Kind != runnerscripts.ToolEdit || call.Status != runnerscripts.ToolCompleted ||
		call.Title != "write notes.txt" || call.Name != "write" {
		f.Fatalf("tool call: %s", agenttest.Show(f, call))
	}
	if len(call.Locations) != 1 || call.Locations[0].Path != f.WorkspaceFile("notes.txt") {
		f.Errorf("locations: %v", call.Locations)
	}
	if len(call.Content) != 1 || call.Content[0].Type != "diff" || call.Content[0].OldText != nil ||
		call.Content[0].NewText != "hello from the scripted model\n" {
		f.Errorf("content: %s", agenttest.Show(f, call.Content))
	}
	init := agenttest.Payloads[runnerscripts.SessionInitialized](f, f.Out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 1 || init[0].Mode != modeAcceptEdits || init[0].AgentVersion != testedVersion ||
		init[0].Model != testModel || init[0].Resumed || len(init[0].Tools) == 0 {
		f.Errorf("session_initialized: %+v", init)
	}
}

func showsAChange(f *fixture, c *conversation) {
	agenttest.WriteFile(f, f.WorkspaceFile("change.txt"), "first\nold\nlast\n")
	f.Prompt(c, "edit-file `change.txt`")
	call := f.call()
	if call.Title != "edit change.txt" || len(call.Content) != 1 {
		f.Fatalf("call: %s", agenttest.Show(f, call))
	}
	if c := call.Content[0]; c.OldText == nil || *c.OldText != "old" || c.NewText != "new" {
		f.Errorf("content: %s", agenttest.Show(f, c))
	}
}

func givesRawLines(f *fixture, _ *conversation) {
	var types []string
	for _, l := range agenttest.Payloads[event](f, f.Out.All(), runnerscripts.TypeRaw) {
		types = append(types, l.Type)
	}
	if all := strings.Join(types, " "); !strings.Contains(all, "message.part.delta") || !strings.Contains(all, "session.status") {
		f.Errorf("raw lines: %s", all)
	}
}

func givesPieces(f *fixture, c *conversation) {
	f.Prompt(c, "plain-text")
	const want = "Hello from the scripted model.\n\nThis is plain text: äöü, 日本語, 🙂."
	chunks := agenttest.Payloads[runnerscripts.ContentChunk](f, f.Events(), runnerscripts.TypeAgentMessage)
	var text string
	for _, c := range chunks {
		if c.Snapshot {
			f.Errorf("a snapshot although the pieces said all: %+v", c)
		}
		text += c.Content.Text
	}
	if text != want || len(chunks) < 5 {
		f.Errorf("%d pieces: %q", len(chunks), text)
	}
}

func thinks(f *fixture, c *conversation) {
	f.Prompt(c, "think")
	blocks := f.blocks()
	if len(blocks) != 3 {
		f.Fatalf("blocks: %s", agenttest.Show(f, blocks))
	}
	thought, text := blocks[1], blocks[2]
	if thought.Kind != session.BlockThought || thought.Text != "Let me think about it. It is simple." {
		f.Errorf("thought: %+v", thought)
	}
	if text.Kind != session.BlockAgent || text.Text != "I have thought about it." {
		f.Errorf("text: %+v", text)
	}
}

func plans(f *fixture, c *conversation) {
	f.Prompt(c, "plan")
	plans := agenttest.Payloads[runnerscripts.Plan](f, f.Events(), runnerscripts.TypePlan)
	want := runnerscripts.PlanEntry{Content: "Think", Status: "completed", Priority: "high"}
	if len(plans) != 1 || len(plans[0].Entries) != 2 || plans[0].Entries[0] != want {
		f.Errorf("plans: %+v", plans)
	}
}

func changesModeAndModel(f *fixture, c *conversation) {
	if got := f.LastRequest().Model; got != "small" {
		f.Errorf("the first model is %q", got)
	}
	if err := c.SetMode(f.Context(), modeAuto); err != nil {
		f.Fatal(err)
	}
	if err := c.SetModel(f.Context(), secondModel); err != nil {
		f.Fatal(err)
	}
	f.Prompt(c, "run-command `touch unasked`") // the first mode would ask
	if got := f.LastRequest().Model; got != "large" {
		f.Errorf("the second model is %q", got)
	}
	if !f.Exists("unasked") {
		f.Error("the command did not run")
	}
	modes := agenttest.Payloads[runnerscripts.ModeUpdate](f, f.Events(), runnerscripts.TypeModeUpdate)
	if len(modes) != 1 || modes[0].CurrentModeID != modeAuto {
		f.Errorf("modes: %+v", modes)
	}
	if err := c.SetMode(f.Context(), "no-such-mode"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), modePlan) {
		f.Errorf("an unknown mode: %v", err)
	}
	for _, model := range []string{"scripted/none", "large"} {
		if err := c.SetModel(f.Context(), model); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
			f.Errorf("the unknown model %q: %v", model, err)
		}
	}
}

func runsACommand(f *fixture, c *conversation) {
	f.Prompt(c, "run-command `printf 'its out'; exit 3`")
	call := f.call()
	if call.Title != "printf 'its out'; exit 3" || call.Kind != runnerscripts.ToolExecute || call.Status != runnerscripts.ToolFailed {
		f.Fatalf("call: %s", agenttest.Show(f, call))
	}
	if len(call.Content) != 1 || !strings.Contains(call.Content[0].Content.Text, "its out") {
		f.Errorf("content: %s", agenttest.Show(f, call.Content))
	}
	if !strings.Contains(string(call.RawOutput), `"exit":3`) {
		f.Errorf("raw output %s", call.RawOutput)
	}
}

func usesTwoTools(f *fixture, c *conversation) {
	f.Prompt(c, "two-tools")
	calls := 0
	for _, b := range f.blocks() {
		if b.Tool != nil && b.Tool.Status == runnerscripts.ToolCompleted {
			calls++
		}
	}
	if calls != 2 {
		f.Errorf("%d completed calls", calls)
	}
}

func handsOver(f *fixture, c *conversation) {
	done := f.Prompt(c, "subagent")
	if done.StopReason != runnerscripts.StopEndTurn {
		f.Errorf("stop reason %q", done.StopReason)
	}
	got := agenttest.Fold(f, f.Events())
	if len(got.Subagents) != 1 {
		f.Fatalf("subagents: %s", agenttest.Show(f, got.Subagents))
	}
	sub := got.Subagents[0]
	if sub.Prompt != "Please do the subwork `echo subagent`" || sub.Type != "general" || sub.AgentID == "" ||
		sub.Status != session.SubagentCompleted || sub.DurationMS == 0 || sub.Output != "The subagent has done its work." {
		f.Errorf("the subagent: %s", agenttest.Show(f, sub))
	}
	blocks := sub.Blocks
	if len(blocks) != 3 || blocks[1].Tool == nil || blocks[1].Tool.Title != "echo subagent" {
		f.Errorf("its conversation: %s", agenttest.Show(f, blocks))
	}
	tr, _ := f.Transcript()
	if len(tr.Subagents) != 1 || tr.Subagents[0].ID != sub.AgentID {
		f.Errorf("the transcript's subagents do not have the id %q", sub.AgentID)
	}
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

func countsUsage(f *fixture, c *conversation) {
	for _, text := range []string{"two-tools", "plain-text", "subagent"} {
		before := len(f.API.Requests())
		got := f.Prompt(c, text).Usage
		if got.CostUSD <= 0 || got.CostUSD > 0.05 {
			f.Errorf("%s: cost %v", text, got.CostUSD)
		}
		got.CostUSD = 0
		if want := usageOf(f.API.Requests()[before:]); got != want || want.InputTokens == 0 {
			f.Errorf("%s: usage\n got %+v\nwant %+v", text, got, want)
		}
	}
	updates := agenttest.Payloads[runnerscripts.UsageUpdate](f, f.Events(), runnerscripts.TypeUsageUpdate)
	if len(updates) == 0 || updates[len(updates)-1].Used < 15_000 || updates[len(updates)-1].Size != 128_000 {
		f.Errorf("usage updates: %+v", updates)
	}
}

func onlyPlans(f *fixture, c *conversation) {
	if err := c.SetMode(f.Context(), modePlan); err != nil {
		f.Fatal(err)
	}
	f.Prompt(c, "write-file `planned.txt`")
	if f.Exists("planned.txt") {
		f.Error("the file is written")
	}
	if asked := agenttest.Payloads[runnerscripts.PermissionRequest](f, f.Events(), runnerscripts.TypePermissionRequest); len(asked) > 0 {
		f.Errorf("asked: %+v", asked)
	}
}
