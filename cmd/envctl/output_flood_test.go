//go:build !race

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// flood configures a sandbox that prints 200 MB of events for one prompt: two thousand events,
// each with its own text and ID.
const flood = `
scripts:
  setup_session: [sh, -c, 'cat >/dev/null; echo "{\"type\":\"result\",\"ok\":true}"']
  read_transcript: [sh, -c, 'cat >/dev/null; echo "{\"type\":\"result\",\"ok\":true}"']
  execute_query:
  - sh
  - -c
  - |
    echo '{"type":"query_started"}'
    awk 'BEGIN {
      for (text = "x"; length(text) < 100000;) text = text text
      text = substr(text, 1, 100000)
      for (i = 0; i < 1000; i++) {
        printf "{\"type\":\"agent_message_chunk\",\"payload\":{\"blockId\":\"b%d\",\"content\":{\"type\":\"text\",\"text\":\"%s\"}}}\n", i, text
        printf "{\"type\":\"tool_call\",\"payload\":{\"toolCallId\":\"t%d\",\"title\":\"t\",\"content\":[{\"type\":\"content\",\"content\":{\"type\":\"text\",\"text\":\"%s\"}}]}}\n", i, text
      }
    }'
    echo '{"type":"query_completed","payload":{"stop_reason":"end_turn"}}'
`

func TestFloodThatIsPrintedIsNotKept(t *testing.T) {
	for _, flags := range [][]string{nil, {"--json"}} {
		alone(t)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "envctl", append([]string{"run", "--config", file(t, "flood.yaml", flood), "go"}, flags...)...)
		var errOut bytes.Buffer
		printed := &counter{memory: func() int64 { return mostMemory(t, cmd.Process.Pid) }}
		cmd.Stdout, cmd.Stderr = printed, &errOut
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, &errOut)
		}
		t.Logf("%v: %d MB printed, %d MiB of memory", flags, printed.n/1_000_000, printed.most>>20)
		if printed.n < 100_000_000 || printed.most == 0 || printed.most>>20 > 200 {
			t.Errorf("%v: %d MB printed with %d MiB of memory, want at most 200", flags, printed.n/1_000_000, printed.most>>20)
		}
	}
}

// The hidden part of a long text costs neither memory nor time.
func TestFloodOfTextFromAToolIsCutWhereItBegins(t *testing.T) {
	text := strings.Repeat("a\n", 2<<20)
	for name, parts := range map[string][]runnerscripts.ToolCallContent{
		"diff": {{Type: "diff", Path: "p", OldText: &text, NewText: text}},
		"text": {{Type: "content", Content: &runnerscripts.Content{Type: "text", Text: text}}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			p := newApp(nil, &out, &out).newPrinter(false).(*textPrinter)
			call := runnerscripts.ToolCall{ToolCallID: "1", Title: "t", Status: runnerscripts.ToolCompleted, Content: parts}
			testmemory.AtMost(t, 8<<20, func() {
				if err := p.result(call, term.Dim); err != nil {
					t.Fatal(err)
				}
			})
			if rows := strings.Count(out.String(), "\n"); rows != resultLines+1 || !strings.Contains(out.String(), "more lines") {
				t.Errorf("%d rows: %.200q", rows, out.String())
			}
			out.Reset()
			testmemory.AtMost(t, 128<<20, func() {
				p.question(permissionPrompt(runnerscripts.PermissionRequest{ID: "1", ToolCall: call}, "", false))
			})
			if rows := strings.Count(out.String(), "\n"); rows > 2*mostRows || !strings.Contains(out.String(), "are not shown") {
				t.Errorf("%d rows of the question: %.200q", rows, out.String())
			}
		})
	}
}

// counter counts the bytes that are written.
type counter struct {
	n, most int64
	memory  func() int64 // called after each 10 MB
}

func (c *counter) Write(b []byte) (int, error) {
	const often = 10_000_000
	before := c.n
	if c.n += int64(len(b)); c.n/often > before/often {
		c.most = max(c.most, c.memory())
	}
	return len(b), nil
}

// mostMemory returns the peak memory of a running process, in bytes, or zero if the process has ended: its last output may
// still be in the pipe. The resource usage of an ended process would not do: its peak is at least that of its parent.
func mostMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0
	}
	if err != nil {
		t.Error(err)
		return 0
	}
	_, line, running := strings.Cut(string(status), "VmHWM:")
	if !running { // a zombie
		return 0
	}
	var kib int64
	if _, err := fmt.Sscan(line, &kib); err != nil {
		t.Error(err)
	}
	return kib << 10
}
