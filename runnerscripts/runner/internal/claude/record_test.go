package claude

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

var recordRuns = flag.Bool("record", false, "record testdata anew, from the real program")

// recorded lists the runs whose lines are in testdata: the program's output (*.lines.jsonl), the
// messages of its transcript (*.main.jsonl, and *.sub.jsonl with *.meta.json of the subagent), and
// the events that these become (*.golden.jsonl).
var recorded = []struct {
	name string
	run  func(f *fixture, c agent.Conversation)
}{
	{"write", func(f *fixture, c agent.Conversation) {
		wait := f.PromptAsync(c, "write-file")
		f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
		_, _ = wait()
	}},
	{"rejected", func(f *fixture, c agent.Conversation) {
		wait := f.PromptAsync(c, "run-command `touch asked`")
		f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "not today"})
		_, _ = wait()
	}},
	{"think", func(f *fixture, c agent.Conversation) { f.Prompt(c, "think") }},
	{"subagent", func(f *fixture, c agent.Conversation) { f.Prompt(c, "subagent") }},
	{"background", func(f *fixture, c agent.Conversation) { f.Prompt(c, "background") }},
	{"overloaded", func(f *fixture, c agent.Conversation) { _, _ = c.Prompt(f.Context(), "q", "http-529") }},
	{"interrupted", func(f *fixture, c agent.Conversation) {
		wait := f.PromptAsync(c, "slow-stream")
		if err := f.API.WaitHeld(f.Context()); err != nil {
			f.Fatal(err)
		}
		f.Out.Wait(f.Context(), f, agenttest.OfType(runnerscripts.TypeAgentMessage))
		if err := c.Interrupt(f.Context()); err != nil {
			f.Fatal(err)
		}
		_, _ = wait()
	}},
	{"profile", func(f *fixture, c agent.Conversation) {
		f.Prompt(c, "/greet the world")
		f.Prompt(c, "call-tool `mcp__own__add {\"a\":2,\"b\":3}`")
		f.Prompt(c, "run-command `touch forbidden`")
	}},
}

// recordedProfile returns the profile of the run "profile".
func recordedProfile(t *testing.T) runnerscripts.Profile {
	t.Helper()
	return runnerscripts.Profile{
		AllowedTools: []string{"mcp__own__add", "Bash(touch *)"},
		Commands:     []runnerscripts.SlashCommand{{Name: "greet", Description: "greets somebody", Content: "plain-text Greet $ARGUMENTS kindly."}},
		Hooks:        []runnerscripts.Hook{{Event: "PreToolUse", Matcher: "Bash", Command: "echo not so >&2; exit 2"}},
		MCPServers:   []runnerscripts.MCPServer{agenttest.BundledMCP(t, "own").Server, {Name: "broken", Command: []string{"/no/such/program"}}},
	}
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
			if r.name == "profile" {
				f.Profile = recordedProfile(t)
				f.SetUp()
			}
			f.Raw = true
			c := f.Start()
			r.run(f, c)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			f.save(r.name)
		})
	}
}

// save writes the recorded data, with the folders of the session and the address of the model
// replaced.
func (f *fixture) save(name string) {
	f.Helper()
	var lines bytes.Buffer
	for _, e := range f.Out.All() {
		if e.Type == runnerscripts.TypeRaw && !bytes.HasPrefix(e.Payload, []byte(`{"type":"control_response"`)) {
			lines.Write(append(e.Payload, '\n'))
		}
	}
	tr, _ := f.Transcript()
	f.write(name, "lines.jsonl", lines.String())
	f.write(name, "main.jsonl", messagesOf(f, tr.Main))
	for _, sub := range tr.Subagents {
		f.write(name, "sub.jsonl", messagesOf(f, sub.Transcript))
		f.write(name, "meta.json", sub.Meta)
	}
}

func (f *fixture) write(name, kind, text string) {
	f.Helper()
	dir, err := filepath.EvalSymlinks(f.Session.Paths.Session)
	if err != nil {
		f.Fatal(err)
	}
	text = strings.NewReplacer(
		dir, "/session", slug(dir), "-session", strings.TrimPrefix(f.API.URL, "http://"), "127.0.0.1:4000",
	).Replace(text)
	if err := os.WriteFile(testdata(name, kind), []byte(text), 0o644); err != nil {
		f.Fatal(err)
	}
}

// messagesOf leaves out the records that are not translated. They contain the program's own
// prompts.
func messagesOf(t testing.TB, transcript string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(transcript) {
		var h head
		if err := json.Unmarshal([]byte(line), &h); err != nil {
			t.Fatal(err)
		}
		if h.Type == "user" || h.Type == "assistant" {
			b.WriteString(line)
		}
	}
	return b.String()
}

func testdata(name, kind string) string { return filepath.Join("testdata", name+"."+kind) }
