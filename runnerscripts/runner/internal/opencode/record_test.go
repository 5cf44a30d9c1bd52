package opencode

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
)

var recordRuns = flag.Bool("record", false, "record testdata anew, from the real program")

// recorded lists the runs in testdata: the server's events (*.lines.jsonl), the exported session
// (*.main.json, and *.sub.json of the subagent), and the driver's events (*.golden.txt).
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
	{"subagent", func(f *fixture, c agent.Conversation) {
		wait := f.PromptAsync(c, "subagent")
		f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
		_, _ = wait()
	}},
	{"question", func(f *fixture, c agent.Conversation) {
		wait := f.PromptAsync(c, "ask-user")
		f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce, UpdatedInput: []byte(`{"answers":[["Blue"]]}`)})
		_, _ = wait()
	}},
	{"overloaded", func(f *fixture, c agent.Conversation) { _, _ = c.Prompt(f.Context(), "q", "http-529") }},
	{"refused", func(f *fixture, c agent.Conversation) { _, _ = c.Prompt(f.Context(), "q", "http-400") }},
	{"interrupted", func(f *fixture, c agent.Conversation) {
		wait := f.PromptAsync(c, "slow-stream")
		f.held(runnerscripts.TypeAgentMessage)
		if err := c.Interrupt(f.Context()); err != nil {
			f.Fatal(err)
		}
		_, _ = wait()
	}},
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
			c, err := f.driver.Start(t.Context(), runnerscripts.QueryRequest{Session: f.Session, Raw: true}, f.Out)
			if err != nil {
				t.Fatal(err)
			}
			r.run(f, c)
			tr, _ := f.Transcript()
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			f.save(r.name, tr)
		})
	}
}

// save writes the recording. It replaces the folders of the session and the address of the model.
func (f *fixture) save(name string, tr runnerscripts.Transcript) {
	f.Helper()
	var lines bytes.Buffer
	for _, e := range f.Out.All() {
		if e.Type == runnerscripts.TypeRaw && !isNoise(e.Payload) {
			lines.Write(append(e.Payload, '\n'))
		}
	}
	f.write(name, "lines.jsonl", lines.String())
	f.write(name, "main.json", tr.Main)
	for _, sub := range tr.Subagents {
		f.write(name, "sub.json", sub.Transcript)
	}
}

// isNoise reports whether a line is not about the conversation.
func isNoise(line []byte) bool {
	for _, typ := range []string{"plugin.", "catalog.", "integration.", "reference.", "server.", "file.", "lsp."} {
		if bytes.Contains(line, []byte(`"type":"`+typ)) {
			return true
		}
	}
	return false
}

func (f *fixture) write(name, kind, text string) {
	f.Helper()
	dir, err := filepath.EvalSymlinks(f.Session.Paths.Session)
	if err != nil {
		f.Fatal(err)
	}
	text = strings.NewReplacer(
		dir, "/session", strings.TrimPrefix(dir, "/"), "session", strings.TrimPrefix(f.API.URL, "http://"), "127.0.0.1:4000",
	).Replace(text)
	if err := os.WriteFile(testdata(name, kind), []byte(text), 0o644); err != nil {
		f.Fatal(err)
	}
}

func testdata(name, kind string) string { return filepath.Join("testdata", name+"."+kind) }

// sameAfterReplay fails unless a transcript yields the same conversation.
func sameAfterReplay(t *testing.T, live *agenttest.Recorder, tr runnerscripts.Transcript) {
	t.Helper()
	stored := agenttest.NewRecorder()
	if err := replay(tr, newTranslator(stored, "/session/workspace")); err != nil {
		t.Fatal(err)
	}
	// The driver itself reports a live prompt, so the server's lines do not yield it.
	var withoutPrompt []runnerscripts.Event
	for _, e := range stored.All() {
		if e.Type != runnerscripts.TypeUserMessage {
			withoutPrompt = append(withoutPrompt, e)
		}
	}
	if len(withoutPrompt) == len(stored.All()) {
		t.Error("the transcript has no prompt")
	}
	agenttest.SameConversation(t, live.All(), withoutPrompt)
}
