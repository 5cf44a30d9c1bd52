package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

var update = flag.Bool("update", false, "write the golden files anew")

// decodeLog reads a log of JSON lines.
func decodeLog(t testing.TB, data []byte) []runnerscripts.Event {
	t.Helper()
	var events []runnerscripts.Event
	for line := range bytes.Lines(data) {
		var ev runnerscripts.Event
		if err := json.Unmarshal(line, &ev); err != nil {
			t.Fatalf("line %d: %v", len(events)+1, err)
		}
		events = append(events, ev)
	}
	return events
}

func fold(events []runnerscripts.Event) *Conversation {
	c := NewConversation()
	for _, ev := range events {
		c.Apply(ev)
	}
	return c
}

// shown returns the JSON form of a conversation.
func shown(t testing.TB, c *Conversation) string {
	t.Helper()
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data) + "\n"
}

func TestLogsFoldIntoTheirConversations(t *testing.T) {
	t.Parallel()
	logs, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(logs) == 0 {
		t.Fatalf("no logs: %v", err)
	}
	for _, name := range logs {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := shown(t, fold(decodeLog(t, data)))
			golden := strings.TrimSuffix(name, "jsonl") + "golden.json"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the conversation differs from %s (write it anew with -update and look at the difference):\n%s", golden, got)
			}
		})
	}
}

func TestEventsThatWereSeenChangeNothing(t *testing.T) {
	t.Parallel()
	events := golden(t)
	once := fold(events)
	want := shown(t, once)
	for _, ev := range events {
		once.Apply(ev)
	}
	if got := shown(t, once); got != want {
		t.Errorf("folding the log again gives\n%s\nwant\n%s", got, want)
	}
}

func TestACloneIsIndependent(t *testing.T) {
	t.Parallel()
	events := golden(t)
	want := shown(t, fold(events))
	for cut := range events {
		c := fold(events[:cut])
		before := shown(t, c)
		clone := c.Clone()
		for _, ev := range events[cut:] {
			clone.Apply(ev)
		}
		if got := shown(t, c); got != before {
			t.Fatalf("events given to the clone at %d changed the original", cut)
		}
		for _, ev := range events[cut:] {
			c.Apply(ev)
		}
		if shown(t, clone) != want || shown(t, c) != want {
			t.Fatalf("clone and original of event %d differ from the whole", cut)
		}
	}
}

func golden(t testing.TB) []runnerscripts.Event {
	t.Helper()
	data, err := os.ReadFile("testdata/everything.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return decodeLog(t, data)
}

func chunk(typ runnerscripts.EventType, id, text string) runnerscripts.Event {
	return event(typ, "q", runnerscripts.ContentChunk{BlockID: id, Content: runnerscripts.Content{Type: "text", Text: text}})
}

// Text may be cut into chunks anywhere, and chunks of different blocks may be interleaved.
func TestHowTextIsCutIntoChunksDoesNotMatter(t *testing.T) {
	t.Parallel()
	texts := map[string]string{"a": "  spaces \n and ünïcödé 🎉 stay ", "b": strings.Repeat("long ", 200), "c": "x"}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		left := map[string][]rune{}
		for id, text := range texts {
			left[id] = []rune(text)
		}
		c := NewConversation()
		for _, id := range []string{"a", "b", "c"} { // the order of the blocks is that of their first chunks
			c.Apply(chunk(runnerscripts.TypeAgentMessage, id, ""))
		}
		for len(left) > 0 {
			for id, rest := range left {
				n := 1 + random.IntN(len(rest))
				c.Apply(chunk(runnerscripts.TypeAgentMessage, id, string(rest[:n])))
				if left[id] = rest[n:]; len(left[id]) == 0 {
					delete(left, id)
				}
			}
		}
		if len(c.Blocks) != 3 {
			t.Fatalf("round %d: %d blocks", round, len(c.Blocks))
		}
		for _, b := range c.Blocks {
			if b.Text != texts[b.ID] {
				t.Fatalf("round %d: block %s says %q", round, b.ID, b.Text)
			}
		}
	}
}

func TestCommonFailuresOfConversations(t *testing.T) {
	t.Parallel()
	t.Run("a thought and a message with one id stay apart", func(t *testing.T) {
		c := fold([]runnerscripts.Event{
			chunk(runnerscripts.TypeAgentThought, "m-0", "hm"), chunk(runnerscripts.TypeAgentMessage, "m-0", "yes"),
			chunk(runnerscripts.TypeAgentThought, "m-0", "m"),
		})
		if len(c.Blocks) != 2 || c.Blocks[0].Text != "hmm" || c.Blocks[1].Text != "yes" {
			t.Errorf("blocks %s", shown(t, c))
		}
	})
	t.Run("a snapshot replaces what came before", func(t *testing.T) {
		snap := event(runnerscripts.TypeAgentMessage, "q", runnerscripts.ContentChunk{
			BlockID: "m", Content: runnerscripts.Content{Type: "text", Text: "whole"}, Snapshot: true,
		})
		c := fold([]runnerscripts.Event{chunk(runnerscripts.TypeAgentMessage, "m", "ha"), snap, chunk(runnerscripts.TypeAgentMessage, "m", "!")})
		if len(c.Blocks) != 1 || c.Blocks[0].Text != "whole!" {
			t.Errorf("blocks %s", shown(t, c))
		}
	})
	t.Run("what is known late of a subagent is not lost", func(t *testing.T) {
		early := chunk(runnerscripts.TypeAgentMessage, "m", "hi")
		early.ConversationID = "toolu_1"
		c := fold([]runnerscripts.Event{
			early,
			event(runnerscripts.TypeSubagentStarted, "q", runnerscripts.SubagentStarted{ToolCallID: "toolu_1"}),
			event(runnerscripts.TypeSubagentStarted, "q", runnerscripts.SubagentStarted{ToolCallID: "toolu_1", Prompt: "look", Type: "t"}),
			event(runnerscripts.TypeSubagentStarted, "q", runnerscripts.SubagentStarted{ToolCallID: "toolu_1", AgentID: "a9"}),
		})
		if len(c.Subagents) != 1 || c.Subagents[0].Prompt != "look" || c.Subagents[0].AgentID != "a9" ||
			len(c.Subagents[0].Blocks) != 1 || len(c.Blocks) != 0 {
			t.Errorf("conversation %s", shown(t, c))
		}
	})
	t.Run("the payload of an unknown type does no harm", func(t *testing.T) {
		c := fold([]runnerscripts.Event{{Seq: 1, Type: "agent_message_chunk_v2", Payload: json.RawMessage(`{"blockId":[]}`)}})
		if c.Unreadable != 0 || len(c.Blocks) != 0 || c.LastSeq != 1 {
			t.Errorf("conversation %s", shown(t, c))
		}
	})
}

// normal returns the blocks in order, without the fields that only live events have.
func normal(blocks []*Block) []string {
	var lines []string
	for _, b := range blocks {
		if b.Kind == BlockError {
			continue // an error belongs to a query, which a transcript does not have
		}
		cp := *b
		cp.QueryID, cp.Time, cp.text = "", time.Time{}, nil
		data, err := json.Marshal(cp)
		if err != nil {
			data = []byte(err.Error())
		}
		lines = append(lines, string(data))
	}
	return lines
}

func TestTheAgentsHistoryGivesTheSameConversationAsTheLiveEvents(t *testing.T) {
	t.Parallel()
	cfg := scripted(t,
		steps(
			runnerscripts.ScenarioStep{Thought: "let me think about it for a while"},
			say("first I say  something, in several chunks\n\n"),
			runnerscripts.ScenarioStep{Plan: &runnerscripts.Plan{Entries: []runnerscripts.PlanEntry{{Content: "a", Status: "pending"}}}},
			run("/bin/sh", "-c", "echo out; echo err >&2"),
			write("f", "content\n"),
			ask(write("g", "asked")),
			run("/bin/sh", "-c", "exit 3"),
			runnerscripts.ScenarioStep{Plan: &runnerscripts.Plan{Entries: []runnerscripts.PlanEntry{{Content: "a", Status: "completed"}}}},
			say("done"),
		),
		steps(ask(run("true")), runnerscripts.ScenarioStep{Fail: &runnerscripts.ScriptFailure{Code: runnerscripts.FailAPI, Message: "later"}}),
		steps(say("after the failure")),
	)
	answers := []runnerscripts.PermissionDecision{allowed, rejected}
	cfg.Environment.OnPermission = func(context.Context, runnerscripts.PermissionRequest) runnerscripts.PermissionDecision {
		d := answers[0]
		answers = answers[1:]
		return d
	}
	var env *environment.Environment
	cfg.Create = func(ctx context.Context, cfg environment.Config) (_ *environment.Environment, err error) {
		env, err = environment.Create(ctx, cfg)
		return env, err
	}
	s := start(t, cfg)
	for _, text := range []string{"one", "two", "three"} {
		var failed *QueryError
		if _, err := prompt(t, s, text).Wait(t.Context()); err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
	}
	live := fold(logOf(t, s))
	read, err := Reduce(env.ReadConversation(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[BlockKind]int{}
	for _, b := range live.Blocks {
		kinds[b.Kind]++
	}
	if kinds[BlockUser] != 3 || kinds[BlockTool] != 5 || kinds[BlockThought] == 0 || kinds[BlockPlan] == 0 || kinds[BlockAgent] == 0 {
		t.Errorf("the live conversation lacks something: %v", kinds)
	}
	if l, r := normal(live.Blocks), normal(read.Blocks); !reflect.DeepEqual(l, r) {
		t.Errorf("live:\n%s\nread back:\n%s", strings.Join(l, "\n"), strings.Join(r, "\n"))
	}
}

// FuzzApply checks that Apply never panics, that its result depends only on the events, and that
// numbered events count once.
func FuzzApply(f *testing.F) {
	data, err := os.ReadFile("testdata/everything.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	for _, typ := range []runnerscripts.EventType{
		runnerscripts.TypeAgentMessage, runnerscripts.TypeToolCallUpdate, runnerscripts.TypePlan, runnerscripts.TypePermissionRequest,
		runnerscripts.TypeSubagentStarted, runnerscripts.TypeQueryFailed, runnerscripts.TypeFileRenamed, runnerscripts.TypeUsageUpdate,
	} {
		for _, payload := range []string{`{}`, `null`, `[]`, `"x"`, `{"toolCallId":1}`, `{"entries":[null]}`, `{"content":null,"blockId":""}`} {
			f.Add(fmt.Appendf(nil, `{"seq":3,"type":%q,"payload":%s,"conversation_id":"c","time":"2026-01-01T00:00:00Z"}`, typ, payload))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var events []runnerscripts.Event
		for line := range bytes.Lines(data) {
			var ev runnerscripts.Event
			if json.Unmarshal(line, &ev) == nil {
				ev.Seq = uint64(len(events) + 1)
				events = append(events, ev)
			}
		}
		c := fold(events)
		want := shown(t, c)
		if got := shown(t, fold(events)); got != want {
			t.Fatalf("folding twice gives\n%s\nand\n%s", want, got)
		}
		clone := c.Clone()
		for _, ev := range events {
			clone.Apply(ev)
		}
		if got := shown(t, clone); got != want {
			t.Fatalf("folding again gives\n%s\nand\n%s", want, got)
		}
	})
}

func TestTakingABlockBackDoesNotGoThroughAllOthers(t *testing.T) {
	chunk := func(id string, snapshot bool, text string) runnerscripts.Event {
		return event(runnerscripts.TypeAgentMessage, "q", runnerscripts.ContentChunk{
			BlockID: id, Snapshot: snapshot, Content: runnerscripts.Content{Type: "text", Text: text},
		})
	}
	c := NewConversation()
	for i := range 10_000 {
		c.Apply(chunk(fmt.Sprint(i), false, "x"))
	}
	unknown := chunk("unknown", true, "")
	if allocs := testing.AllocsPerRun(10, func() { c.Apply(unknown) }); allocs > 20 {
		t.Errorf("to take back an unknown block allocates %v times", allocs)
	}
	begun, back := chunk("again", false, "y"), chunk("again", true, "")
	if allocs := testing.AllocsPerRun(10, func() { c.Apply(begun); c.Apply(back) }); allocs > 40 {
		t.Errorf("to take back a block allocates %v times", allocs)
	}
	c.Apply(chunk("5", true, ""))
	c.Apply(chunk("5", false, "new"))
	if n := len(c.Blocks); n != 10_000 || c.Blocks[5].ID != "6" || c.Blocks[n-1].Text != "new" {
		t.Errorf("%d blocks, at 5 %q, at the end %q", n, c.Blocks[5].ID, c.Blocks[n-1].Text)
	}
}
