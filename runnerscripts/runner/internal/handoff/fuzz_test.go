package handoff_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/internal/test/agenttest"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/acp"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/claude"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/codex"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/command"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/gemini"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/handoff"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/opencode"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/script"
)

func drivers() map[string]agent.Driver {
	return map[string]agent.Driver{
		"acp": acp.Driver{}, "claude": claude.Driver{}, "codex": codex.Driver{}, "command": command.Driver{},
		"gemini": gemini.Driver{}, "opencode": opencode.Driver{}, "script": script.New(script.Config{}),
	}
}

// stored returns the recorded transcripts of an agent, by file name.
func stored(t testing.TB, name string) map[string]runnerscripts.Transcript {
	t.Helper()
	list := map[string]runnerscripts.Transcript{}
	for _, pattern := range []string{"*.main.json*", "*.chat.jsonl"} {
		files, err := filepath.Glob(filepath.Join("..", name, "testdata", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			list[filepath.Base(file)] = runnerscripts.Transcript{Agent: name, Main: string(data)}
		}
	}
	return list
}

// collect returns the conversation of a transcript.
func collect(t testing.TB, s runnerscripts.Session, tr runnerscripts.Transcript) (handoff.Conversation, error) {
	t.Helper()
	var c handoff.Collector
	err := drivers()[tr.Agent].Replay(t.Context(), s, tr, &c)
	return c.Conversation(tr.Agent), err
}

// TestConversionLosesNothing checks that each agent's driver reads back what it wrote of another
// agent's conversation.
func TestConversionLosesNothing(t *testing.T) {
	t.Parallel()
	s := agenttest.NewSession(t, agent.NewUUID(), "any")
	for _, from := range []string{"claude", "codex", "gemini", "opencode"} {
		all := stored(t, from)
		if len(all) == 0 {
			t.Fatalf("no transcript of %s", from)
		}
		for file, tr := range all {
			conv, err := collect(t, s, tr)
			if err != nil {
				t.Fatalf("%s/%s: %v", from, file, err)
			}
			if len(conv.Items) == 0 {
				continue // the transcript has no messages
			}
			for to, driver := range drivers() {
				w, ok := driver.(handoff.Converter)
				if !ok {
					continue
				}
				out, err := w.Convert(s, conv)
				if err != nil {
					t.Errorf("%s/%s to %s: %v", from, file, to, err)
					continue
				}
				out.Agent = to
				again, err := collect(t, s, out)
				if got, want := show(again), show(conv); err != nil || got != want {
					t.Errorf("%s/%s to %s: %v\n%s\nwas\n%s", from, file, to, err, got, want)
				}
			}
		}
	}
}

// show returns the messages and results of a conversation as text. It omits the names of tools,
// which differ between agents.
func show(c handoff.Conversation) string {
	var b strings.Builder
	for _, it := range c.Items {
		switch it.Kind {
		case handoff.User:
			b.WriteString("user " + it.Text + "\n")
		case handoff.Agent:
			b.WriteString("agent " + it.Text + "\n")
		case handoff.Tool:
			b.WriteString("tool " + strings.TrimSpace(it.Call.Output) + "\n")
			if it.Call.Failed {
				b.WriteString("failed\n")
			}
		}
	}
	return b.String()
}

// FuzzForeignTranscripts reads any text as the transcript of any agent. The result must be an
// error, or a conversation that every agent can convert.
func FuzzForeignTranscripts(f *testing.F) {
	for _, from := range []string{"claude", "codex", "gemini", "opencode"} {
		for _, tr := range stored(f, from) {
			f.Add(from, tr.Main)
			f.Add(from, tr.Main[:len(tr.Main)*2/3])
			f.Add(from, strings.ReplaceAll(tr.Main, `"text":"`, `"text":7,"x":"`))
		}
		f.Add(from, "")
		f.Add(from, "{}\nnull\n[]\n\"x\"\n7\n")
	}
	f.Add("acp", `{"time":"2026-01-02T03:04:05Z","type":"user_message_chunk","payload":{"blockId":"1","content":{"type":"text","text":"hello"}}}`)
	f.Add("script", `{"type":"user_message_chunk","payload":{"content":{"text":"hello"}}}`)
	s := agenttest.NewSession(f, agent.NewUUID(), "any")
	f.Fuzz(func(t *testing.T, from, text string) {
		if drivers()[from] == nil {
			return
		}
		conv, err := collect(t, s, runnerscripts.Transcript{Agent: from, Main: text})
		if err != nil || len(conv.Items) == 0 {
			return
		}
		conv = conv.Bounded()
		if conv.Items[0].Kind != handoff.User {
			t.Errorf("it begins with %+v", conv.Items[0])
		}
		for _, it := range conv.Items {
			if it.Call != nil && (it.Call.Name == "" || it.Call.Output == "" || !json.Valid(it.Call.Input) || it.Call.Input[0] != '{') {
				t.Errorf("tool call %+v", it.Call)
			}
			if it.Call == nil && strings.TrimSpace(it.Text) == "" || !utf8.ValidString(it.Text) {
				t.Errorf("words %q", it.Text)
			}
		}
		for to, driver := range drivers() {
			if w, ok := driver.(handoff.Converter); ok {
				if _, err := w.Convert(s, conv); err != nil {
					t.Errorf("to %s: %v", to, err)
				}
			}
		}
		_ = conv.Summary()
	})
}
