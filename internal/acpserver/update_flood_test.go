//go:build !race

package acpserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/primitives/local"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// flood is a script that prints 50 MB of texts and tool calls, 500 in all, each with its own ID.
const flood = `
echo '{"type":"query_started"}'
awk 'BEGIN {
	for (text = "x"; length(text) < 100000;) text = text text
	text = substr(text, 1, 100000)
	for (i = 0; i < 250; i++) {
		printf "{\"type\":\"agent_message_chunk\",\"payload\":{\"blockId\":\"b%d\",\"content\":{\"type\":\"text\",\"text\":\"%s\"}}}\n", i, text
		printf "{\"type\":\"tool_call\",\"payload\":{\"toolCallId\":\"t%d\",\"title\":\"%s\"}}\n", i, text
	}
}'
echo '{"type":"query_completed","payload":{"stop_reason":"end_turn"}}'`

func TestFloodThatTheEditorWasToldIsNotKept(t *testing.T) {
	shell := func(text string) []string { return []string{"/bin/sh", "-c", text} }
	fine := shell(`cat >/dev/null; echo '{"type":"result","ok":true}'`)
	env := environment.Config{
		Agent:   environment.Agent{Name: "script"},
		Sandbox: environment.Sandbox{Type: "local", Provider: &local.Provider{Root: filepath.Join(t.TempDir(), "sandboxes")}},
		Scripts: environment.Scripts{SetupSession: fine, ReadTranscript: fine, ExecuteQuery: shell(flood)},
	}
	disk, err := sqlite.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	w := serveStored(t, disk, session.Config{Environment: env, NoFiles: true})
	id := w.begin()
	var delivered int
	testmemory.AtMost(t, 5*maxSent/2, func() {
		w.send(promptLine("7", id))
		for {
			line, err := w.lines.ReadSlice('\n')
			for delivered += len(line); errors.Is(err, bufio.ErrBufferFull); delivered += len(line) {
				line, err = w.lines.ReadSlice('\n')
			}
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(line, []byte(`"stopReason":"end_turn"`)) {
				return
			}
		}
	})
	if delivered < 50_000_000 {
		t.Errorf("the editor got %d bytes", delivered)
	}
}

func TestFloodOfOneBlockIsNotKept(t *testing.T) {
	tell := newUpdater(&paths{}, hclog.NewNullLogger(), new(choices))
	text := strings.Repeat("x", 1<<20)
	chunk, err := json.Marshal(runnerscripts.ContentChunk{BlockID: "b", Content: runnerscripts.Content{Type: "text", Text: text}})
	if err != nil {
		t.Fatal(err)
	}
	testmemory.AtMost(t, 4*maxSent, func() {
		for range 100 {
			u, ok := tell.update(runnerscripts.Event{Type: runnerscripts.TypeAgentMessage, Payload: chunk})
			if !ok || u.AgentMessageChunk.Content.Text.Text != text {
				t.Fatal("the editor was not delivered a chunk as it is")
			}
		}
	})
}
