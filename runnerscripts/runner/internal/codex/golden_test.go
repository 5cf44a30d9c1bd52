package codex

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

var update = flag.Bool("update", false, "write the golden files anew")

// offline returns a conversation without a program; the test provides the lines. handleAll replaces
// its thread by the first one in the lines.
func offline(out *agenttest.Recorder) *conversation {
	return &conversation{
		out: out, translate: newTranslator(out), thread: "main",
		permissions: agent.Permissions[question]{Out: out}, working: map[string]string{}, broken: map[string]bool{},
	}
}

// handleAll passes recorded lines to a conversation.
func handleAll(t testing.TB, c *conversation, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		var m struct {
			Params note `json:"params"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if c.thread == "main" && m.Params.ThreadID != "" {
			c.thread = m.Params.ThreadID
		}
		c.handle(&jsonrpc.Peer{}, []byte(strings.TrimSuffix(line, "\n")))
	}
}

func readTestdata(t testing.TB, name, kind string) string {
	t.Helper()
	data, err := os.ReadFile(testdata(name, kind))
	if os.IsNotExist(err) && kind == "sub.jsonl" {
		return "" // a run without a subagent
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestRecordedLinesMakeTheseEvents(t *testing.T) {
	for _, r := range recorded {
		t.Run(r.name, func(t *testing.T) {
			out := agenttest.NewRecorder()
			handleAll(t, offline(out), readTestdata(t, r.name, "lines.jsonl"))
			got := agenttest.Describe(out.All())
			if *update {
				if err := os.WriteFile(testdata(r.name, "golden.txt"), []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want := readTestdata(t, r.name, "golden.txt"); got != want {
				t.Errorf("events\n got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// recordedTranscript returns the transcript of a recorded run.
func recordedTranscript(t *testing.T, name string) runnerscripts.Transcript {
	t.Helper()
	tr := runnerscripts.Transcript{Main: readTestdata(t, name, "main.jsonl")}
	if sub := readTestdata(t, name, "sub.jsonl"); sub != "" {
		m, err := metaOf(sub)
		if err != nil {
			t.Fatal(err)
		}
		tr.Subagents = []runnerscripts.SubagentTranscript{{ID: m.ID, Transcript: sub}}
	}
	return tr
}

func TestRecordedTranscriptsMakeTheSameConversationAsTheLines(t *testing.T) {
	for _, r := range recorded {
		t.Run(r.name, func(t *testing.T) {
			live, stored := agenttest.NewRecorder(), agenttest.NewRecorder()
			handleAll(t, offline(live), readTestdata(t, r.name, "lines.jsonl"))
			if err := replay(t.Context(), recordedTranscript(t, r.name), newTranslator(stored)); err != nil {
				t.Fatal(err)
			}
			if len(agenttest.Fold(t, stored.All()).Blocks) == 0 {
				t.Error("the transcript has no blocks")
			}
			agenttest.SameConversation(t, live.All(), stored.All())
		})
	}
}

func TestTranscriptEventsHaveTheRecordedTimes(t *testing.T) {
	out := agenttest.NewRecorder()
	tr := recordedTranscript(t, "write")
	if err := replay(t.Context(), tr, newTranslator(out)); err != nil {
		t.Fatal(err)
	}
	var first, last record
	lines := slices.Collect(strings.Lines(tr.Main))
	for line, r := range map[string]*record{lines[0]: &first, lines[len(lines)-1]: &last} {
		if err := json.Unmarshal([]byte(line), r); err != nil {
			t.Fatal(err)
		}
	}
	if len(out.All()) < 4 {
		t.Fatalf("events:\n%s", agenttest.Describe(out.All()))
	}
	for _, e := range out.All() {
		if e.Time.Before(first.Timestamp) || e.Time.After(last.Timestamp) {
			t.Errorf("%s has the time %s, outside of the recorded ones", e.Type, e.Time)
		}
	}
}

// FuzzLine checks that no line of the program causes a panic or an unreadable event.
func FuzzLine(f *testing.F) {
	for _, r := range recorded {
		for _, kind := range []string{"lines.jsonl", "main.jsonl"} {
			for line := range strings.Lines(readTestdata(f, r.name, kind)) {
				f.Add([]byte(line))
			}
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		out := agenttest.NewRecorder()
		c := offline(out)
		c.query = &query{done: make(chan struct{})}
		if !isRequest(line) { // the answer to a request needs a program
			c.handle(&jsonrpc.Peer{}, line)
			c.handle(&jsonrpc.Peer{}, line)
		}
		if err := replay(t.Context(), runnerscripts.Transcript{Main: string(line)}, newTranslator(out)); err != nil {
			t.Fatal(err)
		}
	})
}

func isRequest(line []byte) bool {
	var m jsonrpc.Message
	_ = json.Unmarshal(line, &m)
	return m.Method != "" && len(m.ID) > 0
}
