package codex

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/jsonrpc"
)

var recordRuns = flag.Bool("record", false, "record testdata anew, from the real program")

// recorded are the runs whose lines are in testdata: the output of the program (*.lines.jsonl), its
// rollout without its own prompts (*.main.jsonl, and *.sub.jsonl of the subagent), and the
// resulting events (*.golden.txt).
var recorded = []struct {
	name string
	run  func(f *fixture, c agent.Conversation)
}{
	{"profile", func(f *fixture, c agent.Conversation) {
		f.Prompt(c, "/sum 3")
		f.Prompt(c, "run-command `touch asked`")
		agenttest.WriteFile(f, f.WorkspaceFile("unfinished"), "")
		f.Prompt(c, "plain-text")
	}},
	{"write", func(f *fixture, c agent.Conversation) {
		wait := f.PromptAsync(c, "write-file")
		f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce})
		_, _ = wait()
	}},
	{"rejected", func(f *fixture, c agent.Conversation) {
		wait := f.PromptAsync(c, "run-command `touch asked`")
		f.Answer(c, runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce})
		_, _ = wait()
	}},
	{"think", func(f *fixture, c agent.Conversation) { f.Prompt(c, "think") }},
	{"subagent", func(f *fixture, c agent.Conversation) {
		if err := c.SetMode(f.Context(), "full-access"); err != nil {
			f.Fatal(err)
		}
		f.Prompt(c, "subagent")
	}},
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
				f.recordedProfile()
			}
			f.SetUp()
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

// recordedProfile sets a profile with everything that affects the events of a conversation.
func (f *fixture) recordedProfile() {
	f.Session.Agent.PermissionMode = "full-access"
	f.Profile = runnerscripts.Profile{
		Commands: []runnerscripts.SlashCommand{{Name: "sum", Content: "call-tool `mcp__calc/add {\"a\":2,\"b\":$ARGUMENTS}`"}},
		Hooks: []runnerscripts.Hook{
			{Event: "PreToolUse", Matcher: "Bash", Command: "echo no commands today >&2; exit 2"},
			{Event: "Stop", Command: "if test -e unfinished; then rm unfinished; echo please finish it >&2; exit 2; fi"},
		},
		MCPServers: []runnerscripts.MCPServer{
			agenttest.StdioMCP(f, "calc").Server, {Name: "missing", Command: []string{"/no/such/program"}},
		},
	}
}

// save writes the recorded files, with the folders of the session and the address of the model
// replaced. It omits replies, and notifications about the machine.
func (f *fixture) save(name string) {
	f.Helper()
	var lines strings.Builder
	for _, e := range f.Out.All() {
		var m jsonrpc.Message
		if e.Type != runnerscripts.TypeRaw || json.Unmarshal(e.Payload, &m) != nil || m.Method == "" {
			continue
		}
		if m.Method != "configWarning" && !strings.HasPrefix(m.Method, "remoteControl/") {
			lines.Write(append(e.Payload, '\n'))
		}
	}
	tr, _ := f.Transcript()
	f.write(name, "lines.jsonl", lines.String())
	f.write(name, "main.jsonl", translated(f, tr.Main))
	for _, sub := range tr.Subagents {
		f.write(name, "sub.jsonl", translated(f, sub.Transcript))
	}
}

func (f *fixture) write(name, kind, text string) {
	f.Helper()
	dir, err := filepath.EvalSymlinks(f.Session.Paths.Session)
	if err != nil {
		f.Fatal(err)
	}
	text = strings.NewReplacer(dir, "/session", strings.TrimPrefix(f.API.URL, "http://"), "127.0.0.1:4000").Replace(text)
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(testdata(name, kind), []byte(text), 0o644); err != nil {
		f.Fatal(err)
	}
}

// translated returns the rollout without the records that are not translated, and without the
// program's own prompts, which contain the model's instructions.
func translated(t testing.TB, rollout string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(rollout) {
		var r record
		var p struct {
			Type string `json:"type"`
			Role string `json:"role"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			t.Fatal(err)
		}
		switch {
		case r.Type == "session_meta":
			line = metaWithoutInstructions(t, r)
		case r.Type == "event_msg" && p.Type != "thread_settings_applied", r.Type == "response_item" && p.Role == "":
		case r.Type == "turn_context":
			r.Payload = json.RawMessage(`{"cwd":"/session/workspace"}`)
			line = string(jsonOf(r)) + "\n"
		default:
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

func metaWithoutInstructions(t testing.TB, r record) string {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(r.Payload, &m); err != nil {
		t.Fatal(err)
	}
	kept := map[string]json.RawMessage{}
	for _, key := range []string{"id", "timestamp", "parent_thread_id", "cli_version", "cwd"} {
		if v, ok := m[key]; ok {
			kept[key] = v
		}
	}
	r.Payload = jsonOf(kept)
	return string(jsonOf(r)) + "\n"
}

func testdata(name, kind string) string { return filepath.Join("testdata", name+"."+kind) }
