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
		wait := f.promptAsync(c, "write-file")
		f.answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
		_, _ = wait()
	}},
	{"rejected", func(f *fixture, c agent.Conversation) {
		wait := f.promptAsync(c, "run-command `touch asked`")
		f.answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: "not today"})
		_, _ = wait()
	}},
	{"think", func(f *fixture, c agent.Conversation) { f.prompt(c, "think") }},
	{"subagent", func(f *fixture, c agent.Conversation) { f.prompt(c, "subagent") }},
	{"background", func(f *fixture, c agent.Conversation) { f.prompt(c, "background") }},
	{"overloaded", func(f *fixture, c agent.Conversation) { _, _ = c.Prompt(f.t.Context(), "q", "http-529") }},
	{"interrupted", func(f *fixture, c agent.Conversation) {
		wait := f.promptAsync(c, "slow-stream")
		if err := f.api.WaitHeld(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
		f.out.Wait(f.t.Context(), f.t, agenttest.OfType(runnerscripts.TypeAgentMessage))
		if err := c.Interrupt(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
		_, _ = wait()
	}},
	{"profile", func(f *fixture, c agent.Conversation) {
		f.prompt(c, "/greet the world")
		f.prompt(c, "call-tool `mcp__own__add {\"a\":2,\"b\":3}`")
		f.prompt(c, "run-command `touch forbidden`")
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

func (f *fixture) answer(c agent.Conversation, d runnerscripts.PermissionDecision) {
	f.t.Helper()
	if err := c.Respond(f.t.Context(), f.asked().ID, d); err != nil {
		f.t.Fatal(err)
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
				f.profile = recordedProfile(t)
				f.setup()
			}
			c, err := Driver{}.Start(t.Context(), runnerscripts.QueryRequest{Session: f.session, Profile: f.profile, Raw: true}, f.out)
			if err != nil {
				t.Fatal(err)
			}
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
	f.t.Helper()
	var lines bytes.Buffer
	for _, e := range f.out.All() {
		if e.Type == runnerscripts.TypeRaw && !bytes.HasPrefix(e.Payload, []byte(`{"type":"control_response"`)) {
			lines.Write(append(e.Payload, '\n'))
		}
	}
	tr, _ := f.transcript()
	f.write(name, "lines.jsonl", lines.String())
	f.write(name, "main.jsonl", messagesOf(f.t, tr.Main))
	for _, sub := range tr.Subagents {
		f.write(name, "sub.jsonl", messagesOf(f.t, sub.Transcript))
		f.write(name, "meta.json", sub.Meta)
	}
}

func (f *fixture) write(name, kind, text string) {
	f.t.Helper()
	dir, err := filepath.EvalSymlinks(f.session.Paths.Session)
	if err != nil {
		f.t.Fatal(err)
	}
	text = strings.NewReplacer(
		dir, "/session", slug(dir), "-session", strings.TrimPrefix(f.api.URL, "http://"), "127.0.0.1:4000",
	).Replace(text)
	if err := os.WriteFile(testdata(name, kind), []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// messagesOf leaves out the records that are not translated. They contain the program's own
// prompts.
func messagesOf(t *testing.T, transcript string) string {
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
