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
	f.session.Agent.PermissionMode = modeAcceptEdits
	f.raw = true
	c := f.start()
	pid := c.server.proc.PID()
	f.each(c, []step{
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
			f.prompt(c, "remember")
			if text := agenttest.Said(f.t, f.events()); !strings.Contains(text, "You said before: please write-file") {
				f.t.Errorf("the agent said %q", text)
			}
			if got := c.server.proc.PID(); got != pid {
				f.t.Errorf("process %d, then %d", pid, got)
			}
		}},
	})
}

func writesAFile(f *fixture, c *conversation) {
	done := f.prompt(c, "please write-file `notes.txt`")
	if done.StopReason != runnerscripts.StopEndTurn {
		f.t.Errorf("stop reason %q", done.StopReason)
	}
	data, err := os.ReadFile(f.workspaceFile("notes.txt"))
	if err != nil || string(data) != "hello from the scripted model\n" {
		f.t.Errorf("file: %q, %v", data, err)
	}
	if blocks := f.blocks(); len(blocks) != 4 {
		f.t.Fatalf("blocks: %s", agenttest.Show(f.t, blocks))
	}
	call := f.call()
	if call.Kind != runnerscripts.ToolEdit || call.Status != runnerscripts.ToolCompleted ||
		call.Title != "write notes.txt" || call.Name != "write" {
		f.t.Fatalf("tool call: %s", agenttest.Show(f.t, call))
	}
	if len(call.Locations) != 1 || call.Locations[0].Path != f.workspaceFile("notes.txt") {
		f.t.Errorf("locations: %v", call.Locations)
	}
	if len(call.Content) != 1 || call.Content[0].Type != "diff" || call.Content[0].OldText != nil ||
		call.Content[0].NewText != "hello from the scripted model\n" {
		f.t.Errorf("content: %s", agenttest.Show(f.t, call.Content))
	}
	init := agenttest.Payloads[runnerscripts.SessionInitialized](f.t, f.out.All(), runnerscripts.TypeSessionInitialized)
	if len(init) != 1 || init[0].Mode != modeAcceptEdits || init[0].AgentVersion != testedVersion ||
		init[0].Model != testModel || init[0].Resumed || len(init[0].Tools) == 0 {
		f.t.Errorf("session_initialized: %+v", init)
	}
}

func showsAChange(f *fixture, c *conversation) {
	agenttest.WriteFile(f.t, f.workspaceFile("change.txt"), "first\nold\nlast\n")
	f.prompt(c, "edit-file `change.txt`")
	call := f.call()
	if call.Title != "edit change.txt" || len(call.Content) != 1 {
		f.t.Fatalf("call: %s", agenttest.Show(f.t, call))
	}
	if c := call.Content[0]; c.OldText == nil || *c.OldText != "old" || c.NewText != "new" {
		f.t.Errorf("content: %s", agenttest.Show(f.t, c))
	}
}

func givesRawLines(f *fixture, _ *conversation) {
	var types []string
	for _, l := range agenttest.Payloads[event](f.t, f.out.All(), runnerscripts.TypeRaw) {
		types = append(types, l.Type)
	}
	if all := strings.Join(types, " "); !strings.Contains(all, "message.part.delta") || !strings.Contains(all, "session.status") {
		f.t.Errorf("raw lines: %s", all)
	}
}

func givesPieces(f *fixture, c *conversation) {
	f.prompt(c, "plain-text")
	const want = "Hello from the scripted model.\n\nThis is plain text: äöü, 日本語, 🙂."
	chunks := agenttest.Payloads[runnerscripts.ContentChunk](f.t, f.events(), runnerscripts.TypeAgentMessage)
	var text string
	for _, c := range chunks {
		if c.Snapshot {
			f.t.Errorf("a snapshot although the pieces said all: %+v", c)
		}
		text += c.Content.Text
	}
	if text != want || len(chunks) < 5 {
		f.t.Errorf("%d pieces: %q", len(chunks), text)
	}
}

func thinks(f *fixture, c *conversation) {
	f.prompt(c, "think")
	blocks := f.blocks()
	if len(blocks) != 3 {
		f.t.Fatalf("blocks: %s", agenttest.Show(f.t, blocks))
	}
	thought, text := blocks[1], blocks[2]
	if thought.Kind != session.BlockThought || thought.Text != "Let me think about it. It is simple." {
		f.t.Errorf("thought: %+v", thought)
	}
	if text.Kind != session.BlockAgent || text.Text != "I have thought about it." {
		f.t.Errorf("text: %+v", text)
	}
}

func plans(f *fixture, c *conversation) {
	f.prompt(c, "plan")
	plans := agenttest.Payloads[runnerscripts.Plan](f.t, f.events(), runnerscripts.TypePlan)
	want := runnerscripts.PlanEntry{Content: "Think", Status: "completed", Priority: "high"}
	if len(plans) != 1 || len(plans[0].Entries) != 2 || plans[0].Entries[0] != want {
		f.t.Errorf("plans: %+v", plans)
	}
}

func changesModeAndModel(f *fixture, c *conversation) {
	if got := f.lastRequest().Model; got != "small" {
		f.t.Errorf("the first model is %q", got)
	}
	if err := c.SetMode(f.t.Context(), modeAuto); err != nil {
		f.t.Fatal(err)
	}
	if err := c.SetModel(f.t.Context(), secondModel); err != nil {
		f.t.Fatal(err)
	}
	f.prompt(c, "run-command `touch unasked`") // the first mode would ask
	if got := f.lastRequest().Model; got != "large" {
		f.t.Errorf("the second model is %q", got)
	}
	if !f.exists("unasked") {
		f.t.Error("the command did not run")
	}
	modes := agenttest.Payloads[runnerscripts.ModeUpdate](f.t, f.events(), runnerscripts.TypeModeUpdate)
	if len(modes) != 1 || modes[0].CurrentModeID != modeAuto {
		f.t.Errorf("modes: %+v", modes)
	}
	if err := c.SetMode(f.t.Context(), "no-such-mode"); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) || !strings.Contains(err.Error(), modePlan) {
		f.t.Errorf("an unknown mode: %v", err)
	}
	for _, model := range []string{"scripted/none", "large"} {
		if err := c.SetModel(f.t.Context(), model); !agenttest.HasCode(err, runnerscripts.FailInvalidRequest) {
			f.t.Errorf("the unknown model %q: %v", model, err)
		}
	}
}

func runsACommand(f *fixture, c *conversation) {
	f.prompt(c, "run-command `printf 'its out'; exit 3`")
	call := f.call()
	if call.Title != "printf 'its out'; exit 3" || call.Kind != runnerscripts.ToolExecute || call.Status != runnerscripts.ToolFailed {
		f.t.Fatalf("call: %s", agenttest.Show(f.t, call))
	}
	if len(call.Content) != 1 || !strings.Contains(call.Content[0].Content.Text, "its out") {
		f.t.Errorf("content: %s", agenttest.Show(f.t, call.Content))
	}
	if !strings.Contains(string(call.RawOutput), `"exit":3`) {
		f.t.Errorf("raw output %s", call.RawOutput)
	}
}

func usesTwoTools(f *fixture, c *conversation) {
	f.prompt(c, "two-tools")
	calls := 0
	for _, b := range f.blocks() {
		if b.Tool != nil && b.Tool.Status == runnerscripts.ToolCompleted {
			calls++
		}
	}
	if calls != 2 {
		f.t.Errorf("%d completed calls", calls)
	}
}

func handsOver(f *fixture, c *conversation) {
	done := f.prompt(c, "subagent")
	if done.StopReason != runnerscripts.StopEndTurn {
		f.t.Errorf("stop reason %q", done.StopReason)
	}
	got := agenttest.Fold(f.t, f.events())
	if len(got.Subagents) != 1 {
		f.t.Fatalf("subagents: %s", agenttest.Show(f.t, got.Subagents))
	}
	sub := got.Subagents[0]
	if sub.Prompt != "Please do the subwork `echo subagent`" || sub.Type != "general" || sub.AgentID == "" ||
		sub.Status != session.SubagentCompleted || sub.DurationMS == 0 || sub.Output != "The subagent has done its work." {
		f.t.Errorf("the subagent: %s", agenttest.Show(f.t, sub))
	}
	blocks := sub.Blocks
	if len(blocks) != 3 || blocks[1].Tool == nil || blocks[1].Tool.Title != "echo subagent" {
		f.t.Errorf("its conversation: %s", agenttest.Show(f.t, blocks))
	}
	tr, _ := f.transcript()
	if len(tr.Subagents) != 1 || tr.Subagents[0].ID != sub.AgentID {
		f.t.Errorf("the transcript's subagents do not have the id %q", sub.AgentID)
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
		before := len(f.api.Requests())
		got := f.prompt(c, text).Usage
		if got.CostUSD <= 0 || got.CostUSD > 0.05 {
			f.t.Errorf("%s: cost %v", text, got.CostUSD)
		}
		got.CostUSD = 0
		if want := usageOf(f.api.Requests()[before:]); got != want || want.InputTokens == 0 {
			f.t.Errorf("%s: usage\n got %+v\nwant %+v", text, got, want)
		}
	}
	updates := agenttest.Payloads[runnerscripts.UsageUpdate](f.t, f.events(), runnerscripts.TypeUsageUpdate)
	if len(updates) == 0 || updates[len(updates)-1].Used < 15_000 || updates[len(updates)-1].Size != 128_000 {
		f.t.Errorf("usage updates: %+v", updates)
	}
}

func onlyPlans(f *fixture, c *conversation) {
	if err := c.SetMode(f.t.Context(), modePlan); err != nil {
		f.t.Fatal(err)
	}
	f.prompt(c, "write-file `planned.txt`")
	if f.exists("planned.txt") {
		f.t.Error("the file is written")
	}
	if asked := agenttest.Payloads[runnerscripts.PermissionRequest](f.t, f.events(), runnerscripts.TypePermissionRequest); len(asked) > 0 {
		f.t.Errorf("asked: %+v", asked)
	}
}
