package claude

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/child"
)

var update = flag.Bool("update", false, "write the golden files anew")

// offline returns a conversation whose program prints nothing. The test provides the lines.
func offline(t testing.TB, out *agenttest.Recorder) *conversation {
	return offlineOf(silent(t, "exec cat >/dev/null", func([]byte) {}), out)
}

func offlineOf(p *child.Process, out *agenttest.Recorder) *conversation {
	return &conversation{
		session:     runnerscripts.Session{Paths: primitives.PathsIn("/session")},
		out:         out,
		translate:   newTranslator(out, primitives.PathsIn("/session")),
		process:     p,
		replies:     map[string]func(controlResponse){},
		permissions: agent.Permissions[question]{Out: out},
	}
}

// silent starts a shell program, which ends with the test.
func silent(t testing.TB, script string, handle func([]byte)) *child.Process {
	t.Helper()
	p, err := child.Start(child.Command{Args: []string{"/bin/sh", "-c", script}}, handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func readTestdata(t testing.TB, name, kind string) string {
	t.Helper()
	data, err := os.ReadFile(testdata(name, kind))
	if os.IsNotExist(err) && (kind == "sub.jsonl" || kind == "meta.json") {
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
			c := offline(t, out)
			for line := range strings.Lines(readTestdata(t, r.name, "lines.jsonl")) {
				c.handle([]byte(strings.TrimSuffix(line, "\n")))
			}
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

func TestRecordedTranscriptsMakeTheSameConversationAsTheLines(t *testing.T) {
	for _, r := range recorded {
		t.Run(r.name, func(t *testing.T) {
			live := agenttest.NewRecorder()
			c := offline(t, live)
			for line := range strings.Lines(readTestdata(t, r.name, "lines.jsonl")) {
				c.handle([]byte(line))
			}
			tr := runnerscripts.Transcript{Main: readTestdata(t, r.name, "main.jsonl")}
			if sub := readTestdata(t, r.name, "sub.jsonl"); sub != "" {
				started := agenttest.Payloads[runnerscripts.SubagentStarted](t, live.All(), runnerscripts.TypeSubagentStarted)
				tr.Subagents = []runnerscripts.SubagentTranscript{{
					ID: started[0].AgentID, Transcript: sub, Meta: readTestdata(t, r.name, "meta.json"),
				}}
			}
			stored := agenttest.NewRecorder()
			if err := replay(t.Context(), tr, newTranslator(stored, primitives.Paths{Workspace: "/session/workspace"})); err != nil {
				t.Fatal(err)
			}
			// The prompt is the driver's own event: the program does not print it.
			withoutPrompt := slices.DeleteFunc(stored.All(), func(e runnerscripts.Event) bool {
				return e.Type == runnerscripts.TypeUserMessage && e.ConversationID == runnerscripts.MainConversation
			})
			if len(withoutPrompt) == len(stored.All()) {
				t.Error("the transcript has no prompt")
			}
			agenttest.SameConversation(t, live.All(), withoutPrompt)

			// Without the metadata file, the result of the call names the subagent.
			if len(tr.Subagents) > 0 {
				tr.Subagents[0].Meta = ""
				again := agenttest.NewRecorder()
				if err := replay(t.Context(), tr, newTranslator(again, primitives.Paths{Workspace: "/session/workspace"})); err != nil {
					t.Fatal(err)
				}
				agenttest.SameConversation(t, stored.All(), again.All())
			}
		})
	}
}

func TestTranscriptEventsHaveTheRecordedTimes(t *testing.T) {
	out := agenttest.NewRecorder()
	tr := runnerscripts.Transcript{Main: readTestdata(t, "write", "main.jsonl")}
	if err := replay(t.Context(), tr, newTranslator(out, primitives.PathsIn("/session"))); err != nil {
		t.Fatal(err)
	}
	var times []string
	for line := range strings.Lines(tr.Main) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		times = append(times, r.Timestamp.String())
	}
	if len(out.All()) < 4 {
		t.Fatalf("events:\n%s", agenttest.Describe(out.All()))
	}
	for _, e := range out.All() {
		if !slices.Contains(times, e.Time.String()) {
			t.Errorf("%s has the time %s, which is no record's", e.Type, e.Time)
		}
	}
}

// olderVersion returns a recorded line as a version prints it that reports neither states nor the
// cost of a single turn. It returns nil if that version does not print the line.
func olderVersion(t *testing.T, line string) []byte {
	t.Helper()
	var l map[string]json.RawMessage
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		t.Fatal(err)
	}
	if string(l["subtype"]) == `"session_state_changed"` || string(l["type"]) == `"command_lifecycle"` {
		return nil
	}
	delete(l, "model_usage_since_last_result")
	data, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestVersionWithoutStatesEndsTheQueryWithItsResult(t *testing.T) {
	c := offline(t, agenttest.NewRecorder())
	for turn := range 2 {
		q := &query{uuid: "u", done: make(chan struct{})}
		c.query = q
		for line := range strings.Lines(readTestdata(t, "write", "lines.jsonl")) {
			if data := olderVersion(t, line); data != nil {
				c.handle(data)
			}
		}
		select {
		case <-q.done:
		default:
			t.Fatalf("turn %d did not end", turn)
		}
		// The figures are cumulative, so the same figures again mean a turn without cost.
		if free := q.usage.InputTokens == 0 && q.usage.CostUSD == 0; free != (turn == 1) {
			t.Errorf("turn %d cost %+v", turn, q.usage)
		}
	}
}

func TestUnreadableLinesAreLoggedAndNothingElse(t *testing.T) {
	out := agenttest.NewRecorder()
	c := offline(t, out)
	for _, line := range []string{
		`not json`, `{"type":"assistant","message":7}`, `{"type":"system","subtype":[]}`, "{\"type\":\"result\",\"result\":\xff",
	} {
		c.handle([]byte(line))
	}
	c.handle([]byte(`{"type":"of_a_newer_version","x":1}`))
	logs := agenttest.Payloads[runnerscripts.Log](t, out.All(), runnerscripts.TypeLog)
	if len(logs) != 4 || len(out.All()) != 4 {
		t.Errorf("events:\n%s", agenttest.Describe(out.All()))
	}
}

func TestUnknownRequestOfTheProgramIsAnsweredWithAnError(t *testing.T) {
	sent := make(chan []byte, 1)
	out := agenttest.NewRecorder()
	c := offline(t, out)
	c.process = silent(t, "exec cat", func(line []byte) { sent <- bytes.Clone(line) })
	c.handle([]byte(`{"type":"control_request","request_id":"r1","request":{"subtype":"elicitation"}}`))
	line := <-sent
	var l controlLine
	if err := json.Unmarshal(line, &l); err != nil || l.Response == nil {
		t.Fatalf("sent %q: %v", line, err)
	}
	if l.Response.Subtype != "error" || l.Response.RequestID != "r1" || !strings.Contains(l.Response.Error, "elicitation") {
		t.Errorf("sent %s", line)
	}
}

// FuzzLine checks that no line of the program causes a panic or an unreadable event.
func FuzzLine(f *testing.F) {
	for _, r := range recorded {
		for line := range strings.Lines(readTestdata(f, r.name, "lines.jsonl")) {
			f.Add([]byte(line))
		}
	}
	p := silent(f, "exec cat >/dev/null", func([]byte) {})
	f.Fuzz(func(t *testing.T, line []byte) {
		out := agenttest.NewRecorder()
		c := offlineOf(p, out)
		c.query = &query{uuid: "u", done: make(chan struct{})}
		c.handle(line)
		c.handle(line)
		if err := replay(t.Context(), runnerscripts.Transcript{Main: string(line)}, newTranslator(out, primitives.Paths{Workspace: "/w"})); err != nil {
			t.Fatal(err)
		}
	})
}
