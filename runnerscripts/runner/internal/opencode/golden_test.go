package opencode

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

var update = flag.Bool("update", false, "write the golden files anew")

func readTestdata(t testing.TB, name, kind string) string {
	t.Helper()
	data, err := os.ReadFile(testdata(name, kind))
	if os.IsNotExist(err) && kind == "sub.json" {
		return "" // a run without a subagent
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// recordedTranscript returns the transcript of a recorded run.
func recordedTranscript(t testing.TB, name string) (tr runnerscripts.Transcript, id string, messages []message) {
	t.Helper()
	tr.Main = readTestdata(t, name, "main.json")
	info, messages, err := parseExport(tr.Main)
	if err != nil {
		t.Fatal(err)
	}
	if sub := readTestdata(t, name, "sub.json"); sub != "" {
		child, _, err := parseExport(sub)
		if err != nil {
			t.Fatal(err)
		}
		tr.Subagents = []runnerscripts.SubagentTranscript{{ID: child.ID, Transcript: sub}}
	}
	return tr, info.ID, messages
}

// play passes recorded lines to an offline conversation, and then the messages that the driver
// reads at the end of a query.
func play(t testing.TB, name string, lines []string) *agenttest.Recorder {
	t.Helper()
	tr, id, messages := recordedTranscript(t, name)
	out := agenttest.NewRecorder()
	c := offline(out, id)
	for _, line := range lines {
		c.handle(t.Context(), []byte(line))
	}
	c.translateMessages(messages)
	for _, sub := range tr.Subagents {
		_, work, err := parseExport(sub.Transcript)
		if err != nil {
			t.Fatal(err)
		}
		c.translateMessages(work)
	}
	return out
}

func recordedLines(t testing.TB, name string) []string {
	t.Helper()
	return slices.Collect(strings.Lines(readTestdata(t, name, "lines.jsonl")))
}

func TestRecordedLinesMakeTheseEvents(t *testing.T) {
	for _, r := range recorded {
		t.Run(r.name, func(t *testing.T) {
			got := agenttest.Describe(play(t, r.name, recordedLines(t, r.name)).All())
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
			tr, _, _ := recordedTranscript(t, r.name)
			sameAfterReplay(t, play(t, r.name, recordedLines(t, r.name)), tr)
		})
	}
}

// Events may arrive out of order, and some may be missing when a query ends.
func TestEventsInAnotherOrderMakeTheSameConversation(t *testing.T) {
	orders := map[string]func([]string) []string{
		"none":         func([]string) []string { return nil },
		"the last one": func(l []string) []string { return l[len(l)-1:] },
		"backwards": func(l []string) []string {
			l = slices.Clone(l)
			slices.Reverse(l)
			return l
		},
		"the first half":  func(l []string) []string { return l[:len(l)/2] },
		"the second half": func(l []string) []string { return l[len(l)/2:] },
		"pairs swapped": func(l []string) []string {
			l = slices.Clone(l)
			for i := 1; i < len(l); i += 2 {
				l[i-1], l[i] = l[i], l[i-1]
			}
			return l
		},
		"everything twice": func(l []string) []string { return append(slices.Clone(l), l...) },
	}
	for _, r := range recorded {
		for name, order := range orders {
			t.Run(r.name+"/"+name, func(t *testing.T) {
				tr, _, _ := recordedTranscript(t, r.name)
				sameBlocks(t, play(t, r.name, order(recordedLines(t, r.name))), tr)
			})
		}
	}
}

// sameBlocks fails unless a transcript yields the same blocks, in any order.
func sameBlocks(t *testing.T, live *agenttest.Recorder, tr runnerscripts.Transcript) {
	t.Helper()
	stored := agenttest.NewRecorder()
	if err := replay(tr, newTranslator(stored, "/session/workspace")); err != nil {
		t.Fatal(err)
	}
	texts := func(events []runnerscripts.Event) []string {
		var list []string
		conv := agenttest.Fold(t, events)
		blocks := conv.Blocks
		for _, s := range conv.Subagents {
			blocks = append(blocks, s.Blocks...)
		}
		for _, b := range blocks {
			if b.Kind != session.BlockUser {
				b.Time = time.Time{}
				list = append(list, agenttest.Show(t, b))
			}
		}
		slices.Sort(list)
		return list
	}
	a, b := texts(live.All()), texts(stored.All())
	if !slices.Equal(a, b) {
		t.Errorf("live:\n%s\ntranscript:\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
}

func TestTranscriptEventsHaveTheRecordedTimes(t *testing.T) {
	out := agenttest.NewRecorder()
	tr, _, messages := recordedTranscript(t, "write")
	if err := replay(tr, newTranslator(out, "/session/workspace")); err != nil {
		t.Fatal(err)
	}
	first, last := at(messages[0].Info.Time.Created), at(messages[len(messages)-1].Info.Time.Completed)
	if len(out.All()) < 4 {
		t.Fatalf("events:\n%s", agenttest.Describe(out.All()))
	}
	for _, e := range out.All() {
		if e.Time.Before(first) || e.Time.After(last) {
			t.Errorf("%s has the time %s, which is not of the run", e.Type, e.Time)
		}
	}
}

func TestUnreadableEventsAreLoggedAndNothingElse(t *testing.T) {
	out := agenttest.NewRecorder()
	c := offline(out, "ses_1")
	for _, line := range []string{
		`not json`, `{"type":"message.updated","properties":7}`, `{"type":[]}`, "{\"type\":\"session.error\",\"x\":\xff",
	} {
		c.handle(t.Context(), []byte(line))
	}
	c.handle(t.Context(), []byte(`{"type":"of.a.newer.version","properties":{"x":1}}`))
	logs := agenttest.Payloads[runnerscripts.Log](t, out.All(), runnerscripts.TypeLog)
	if len(logs) != 4 || len(out.All()) != 4 {
		t.Errorf("events:\n%s", agenttest.Describe(out.All()))
	}
}

// FuzzEvent checks that no line of the server causes a panic or an event that cannot be read.
func FuzzEvent(f *testing.F) {
	for _, r := range recorded {
		for _, line := range recordedLines(f, r.name) {
			f.Add([]byte(line))
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		c := offline(agenttest.NewRecorder(), "ses_1")
		c.query = newQuery("msg_1")
		c.handle(t.Context(), line)
		c.handle(t.Context(), line)
	})
}
