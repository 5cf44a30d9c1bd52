package gemini

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/drivertest"
)

var (
	update     = flag.Bool("update", false, "write the golden files anew")
	recordRuns = flag.Bool("record", false, "record testdata anew, from the real program")
)

// recorded are the runs whose lines are in testdata: the output of the program (*.lines.jsonl), its
// session file (*.chat.jsonl), and the resulting events (*.golden.txt).
var recorded = []struct {
	name string
	run  func(f *fixture, c agent.Conversation) error
}{
	{"write", func(f *fixture, c agent.Conversation) error {
		return f.answering(c, "write-file", runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
	}},
	{"rejected", func(f *fixture, c agent.Conversation) error {
		return f.answering(c, "run-command `touch asked`", runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce})
	}},
	{"think", func(f *fixture, c agent.Conversation) error {
		_, err := c.Prompt(f.Context(), "q", "think")
		return err
	}},
}

// answering runs a query and answers its permission request.
func (f *fixture) answering(c agent.Conversation, text string, d runnerscripts.PermissionDecision) error {
	wait := f.PromptAsync(c, text)
	if err := c.Respond(f.Context(), f.Asked().ID, d); err != nil {
		return err
	}
	_, err := wait()
	return err
}

// TestRecordedRunsCanBeRecordedAnew runs the real program only with -record.
func TestRecordedRunsCanBeRecordedAnew(t *testing.T) {
	for _, r := range recorded {
		if !*recordRuns {
			if _, err := os.Stat(testdata(r.name, "lines.jsonl")); err != nil {
				t.Errorf("run the test with -record: %v", err)
			}
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			f := newFixture(t)
			f.Raw = true
			c := f.Start()
			if err := r.run(f, c); err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			f.save(r.name)
		})
	}
}

// save writes the recorded files, with the folder of the session and the address of the model
// replaced.
func (f *fixture) save(name string) {
	f.Helper()
	var lines bytes.Buffer
	for _, e := range f.Out.All() {
		if e.Type == runnerscripts.TypeRaw {
			lines.Write(append(e.Payload, '\n'))
		}
	}
	tr, _ := f.Transcript()
	dir, err := filepath.EvalSymlinks(f.Session.Paths.Session)
	if err != nil {
		f.Fatal(err)
	}
	anonymous := strings.NewReplacer(dir, sessionFolder, strings.TrimPrefix(f.API.URL, "http://"), "127.0.0.1:4000")
	for kind, text := range map[string]string{"lines.jsonl": lines.String(), "chat.jsonl": tr.Main} {
		agenttest.WriteFile(f, testdata(name, kind), anonymous.Replace(text))
	}
}

func TestRecordedRunsMakeTheseEvents(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recorded {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			f := &fixture{drivertest.New(t, Driver{}, programName)}
			f.Session.Agent.Command = []string{self}
			run, err := filepath.Abs(filepath.Join("testdata", r.name))
			if err != nil {
				t.Fatal(err)
			}
			f.Session.Agent.Env = map[string]string{replayVariable: run}
			c := f.Start()
			if err := r.run(f, c); err != nil {
				t.Fatal(err)
			}
			dir, err := filepath.EvalSymlinks(f.Session.Paths.Session)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.ReplaceAll(agenttest.Describe(f.Out.All()), dir, sessionFolder)
			if *update {
				agenttest.WriteFile(t, testdata(r.name, "golden.txt"), got)
			}
			want, err := os.ReadFile(testdata(r.name, "golden.txt"))
			if err != nil || got != string(want) {
				t.Errorf("%v: events\n got:\n%s\nwant:\n%s", err, got, want)
			}
		})
	}
}

// TestTranscriptEventsHaveTheRecordedTimes checks that no event has the time of the replay.
func TestTranscriptEventsHaveTheRecordedTimes(t *testing.T) {
	t.Parallel()
	out := agenttest.NewRecorder()
	text := recordedFile(testdata("write", "chat.jsonl"), sessionFolder)
	if err := replay(t.Context(), runnerscripts.Transcript{Main: text}, sessionFolder+"/workspace", out); err != nil {
		t.Fatal(err)
	}
	times := map[string]bool{}
	for _, m := range parse(text).messages {
		times[m.Time] = true
		for _, c := range m.calls {
			times[c.Time] = true
		}
	}
	if len(out.All()) < 4 {
		t.Fatalf("events:\n%s", agenttest.Describe(out.All()))
	}
	for _, e := range out.All() {
		if !times[e.Time.UTC().Format("2006-01-02T15:04:05.000Z")] {
			t.Errorf("%s has the time %s, which is no record's", e.Type, e.Time)
		}
	}
}

// FuzzRecord checks that no line of a session file causes a panic or an unreadable event.
func FuzzRecord(f *testing.F) {
	for line := range strings.Lines(recordedFile(testdata("write", "chat.jsonl"), sessionFolder)) {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		out := agenttest.NewRecorder()
		if err := replay(t.Context(), runnerscripts.Transcript{Main: string(line) + "\n" + string(line)}, "/w", out); err != nil {
			t.Fatal(err)
		}
		again := parse(string(line)).text()
		if twice := parse(again).text(); twice != again {
			t.Errorf("read again, the text\n%s is\n%s", again, twice)
		}
		agenttest.Fold(t, out.All())
	})
}
