package llmapi_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
	"github.com/agentenv-dev/agentenv/internal/test/testleak"
)

func TestMain(m *testing.M) { testleak.Main(m) }

func start(t *testing.T) *llmapi.Server {
	t.Helper()
	s, err := llmapi.Start(t.Context(), llmapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// post sends messages, each "role: text", and offers the tools Write, Bash and Agent.
func post(t *testing.T, s *llmapi.Server, stream bool, messages ...map[string]any) *http.Response {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": "m", "stream": stream, "messages": messages,
		"tools": []map[string]string{{"name": "Write"}, {"name": "Bash"}, {"name": "Agent"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/messages?beta=true", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func user(text string) map[string]any { return map[string]any{"role": "user", "content": text} }

func toolCall(id string) map[string]any {
	return map[string]any{"role": "assistant", "content": []any{map[string]any{"type": "tool_use", "id": id, "name": "Write", "input": map[string]any{}}}}
}

func toolResult(id string) map[string]any {
	return map[string]any{"role": "user", "content": []any{
		map[string]any{"type": "tool_result", "tool_use_id": id, "content": "ok"},
		map[string]any{"type": "text", "text": "<system-reminder>think-about write-file</system-reminder>"},
	}}
}

// message is a reply as JSON.
type message struct {
	StopReason string       `json:"stop_reason"`
	Usage      llmapi.Usage `json:"usage"`
	Content    []struct {
		Type  string         `json:"type"`
		Text  string         `json:"text"`
		Name  string         `json:"name"`
		Input map[string]any `json:"input"`
	} `json:"content"`
}

func (m message) String() string {
	parts := []string{m.StopReason}
	for _, c := range m.Content {
		parts = append(parts, strings.TrimSpace(c.Type+" "+c.Text+c.Name))
	}
	return strings.Join(parts, ", ")
}

func TestReplyDependsOnScenarioAndToolResults(t *testing.T) {
	s := start(t)
	tests := []struct {
		name     string
		messages []map[string]any
		want     string
	}{
		{"a word in the text chooses", []map[string]any{user("please write-file now")}, "tool_use, text I use a tool., tool_use Write"},
		{"a tool result moves on", []map[string]any{user("write-file"), toolCall("1"), toolResult("1")}, "end_turn, text The file is written."},
		{"two tools in one message", []map[string]any{user("two-tools")}, "tool_use, text I use two tools., tool_use Write, tool_use Bash"},
		{"the last text counts", []map[string]any{user("write-file"), toolCall("1"), toolResult("1"), user("run-command")}, "tool_use, text I use a tool., tool_use Bash"},
		{"endless goes on", []map[string]any{user("endless"), toolCall("1"), toolResult("1"), toolCall("2"), toolResult("2")}, "tool_use, text I go on., tool_use Bash"},
		{"a subagent is delegated to", []map[string]any{user("subagent")}, "tool_use, text I hand this over., tool_use Agent"},
		{"a missing tool is said", []map[string]any{user("ask-user")}, "end_turn, text No tool for this is on offer."},
		{"earlier texts are repeated", []map[string]any{user("a"), user("b"), user("remember")}, "end_turn, text You said before: a | b"},
		{"a longer word is another word", []map[string]any{user("plain-text rewrite-file")}, "end_turn, text Hello from the scripted model.\n\nThis is plain text: äöü, 日本語, 🙂."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var m message
			if err := json.NewDecoder(post(t, s, false, tt.messages...).Body).Decode(&m); err != nil {
				t.Fatal(err)
			}
			if m.String() != tt.want {
				t.Errorf("reply\n got %s\nwant %s", m, tt.want)
			}
		})
	}
}

func TestBackticksHoldTheArgument(t *testing.T) {
	s := start(t)
	var m message
	if err := json.NewDecoder(post(t, s, false, user("run-command `write-file x`")).Body).Decode(&m); err != nil {
		t.Fatal(err)
	}
	if got := m.Content[1].Input["command"]; got != "write-file x" {
		t.Errorf("command = %q", got)
	}
}

func TestStreamCarriesTheSameReply(t *testing.T) {
	s := start(t)
	events := readEvents(t, post(t, s, true, user("two-tools")).Body)
	var text, input string
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, e.Type)
		text += e.Delta.Text
		input += e.Delta.PartialJSON
	}
	if text != "I use two tools." {
		t.Errorf("text %q", text)
	}
	if !strings.Contains(input, `"file_path":"two.txt"`) || !strings.Contains(input, `"command":"echo two"`) {
		t.Errorf("inputs %s", input)
	}
	if kinds[0] != "message_start" || kinds[len(kinds)-1] != "message_stop" {
		t.Errorf("events %v", kinds)
	}
	last := events[len(events)-2]
	if recorded := s.Requests()[0].Usage; last.Usage != recorded || recorded.OutputTokens == 0 {
		t.Errorf("usage sent %+v, recorded %+v", last.Usage, recorded)
	}
}

func TestSlowStreamHoldsUntilReleased(t *testing.T) {
	s := start(t)
	resp := post(t, s, true, user("slow-stream"))
	if err := s.WaitHeld(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(resp.Body)
	var before strings.Builder
	for !strings.Contains(before.String(), "three") {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		before.WriteString(line)
	}
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, err := io.ReadAll(lines)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(before.String(), "six.") || !strings.Contains(string(after), "six.") {
		t.Errorf("before the release %s\nafter %s", &before, after)
	}
}

func TestCloseCutsAHeldStream(t *testing.T) {
	s := start(t)
	resp := post(t, s, true, user("slow-stream"))
	if err := s.WaitHeld(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err == nil && strings.Contains(string(body), "message_stop") {
		t.Error("the stream ended as if it were whole")
	}
}

func TestFailuresHaveTheirStatus(t *testing.T) {
	s := start(t)
	for _, status := range []int{400, 529} {
		resp := post(t, s, true, user(fmt.Sprintf("http-%d", status)))
		if resp.StatusCode != status {
			t.Errorf("http-%d: status %d", status, resp.StatusCode)
		}
	}
}

func TestRequestsAreBounded(t *testing.T) {
	s := start(t)
	for i := range 260 {
		post(t, s, false, user(fmt.Sprintf("text %d", i))).Body.Close()
	}
	got := s.Requests()
	if len(got) != 256 || got[255].Texts[0] != "text 259" {
		t.Errorf("%d requests, the last %q", len(got), got[len(got)-1].Texts)
	}
}

type event struct {
	Type  string `json:"type"`
	Delta struct {
		Text        string `json:"text"`
		PartialJSON string `json:"partial_json"`
	} `json:"delta"`
	Usage llmapi.Usage `json:"usage"`
}

func readEvents(t *testing.T, r io.Reader) []event {
	t.Helper()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	var list []event
	for line := range strings.Lines(string(data)) {
		payload, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(payload), &e); err != nil {
			t.Fatalf("%v in %s", err, payload)
		}
		list = append(list, e)
	}
	return list
}
