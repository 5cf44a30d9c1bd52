package llmapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/llmapi"
)

// postResponses sends a request as Codex does, with the tools exec_command and apply_patch.
func postResponses(t *testing.T, s *llmapi.Server, stream bool, input ...map[string]any) (int, string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"model": "m", "stream": stream, "input": input,
		"tools": []map[string]any{
			{"type": "function", "name": "exec_command"},
			{"type": "custom", "name": "apply_patch"},
			{"type": "namespace", "name": "space", "tools": []map[string]string{{"type": "function", "name": "inner"}}},
			{"type": "tool_search"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/responses", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func said(role, text string) map[string]any {
	return map[string]any{"type": "message", "role": role, "content": []any{map[string]string{"type": "input_text", "text": text}}}
}

func TestResponsesCallTheToolsOfCodex(t *testing.T) {
	t.Parallel()
	for prompt, want := range map[string]string{
		"run-command `ls`":                    `"arguments":"{\"cmd\":\"ls\"}"`,
		"write-file `a.txt`":                  `"input":"*** Begin Patch\n*** Add File: a.txt`,
		"subagent":                            `"namespace":"multi_agent_v1"`,
		"call-tool `space/inner {\"a\":1}`":   `"arguments":"{\"a\":1}"`,
		"call-tool `exec_command not-json`":   "No tool for this is on offer.",
		"think":                               `"type":"summary_text"`,
		"escalate `ls`":                       `require_escalated`,
		"edit-file `a.txt` and say plain-tex": `*** Update File: a.txt`,
	} {
		s := start(t)
		status, body := postResponses(t, s, false, said("user", prompt))
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", prompt, status, body)
		}
	}
}

func TestResponsesDependOnTheLastWordsOfTheUserAlone(t *testing.T) {
	t.Parallel()
	s := start(t)
	output := map[string]any{"type": "function_call_output", "call_id": "c", "output": "done so"}
	_, body := postResponses(
		t, s, false,
		said("developer", "write-file"), said("user", "<environment_context>write-file</environment_context>"),
		said("user", "run-command"), map[string]any{"type": "function_call", "call_id": "c", "name": "exec_command", "arguments": "{}"}, output,
	)
	if !strings.Contains(body, "The command has run.") {
		t.Errorf("reply %s", body)
	}
	req := s.Requests()[0]
	if len(req.Texts) != 1 || req.Texts[0] != "run-command" || len(req.Results) != 1 || req.Results[0] != "done so" {
		t.Errorf("recorded %+v", req)
	}
	if tools := strings.Join(req.Tools, " "); !strings.HasPrefix(tools, "exec_command apply_patch space/inner tool_search") {
		t.Errorf("tools %q", tools)
	}
}

func TestResponsesStreamTheSameReplyInPieces(t *testing.T) {
	t.Parallel()
	s := start(t)
	status, body := postResponses(t, s, true, said("user", "think"))
	if status != http.StatusOK {
		t.Fatal(status)
	}
	var thought, text strings.Builder
	var last string
	for line := range strings.Lines(body) {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type  string `json:"type"`
			Delta string `json:"delta"`
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		last = e.Type
		switch e.Type {
		case "response.reasoning_summary_text.delta":
			thought.WriteString(e.Delta)
		case "response.output_text.delta":
			text.WriteString(e.Delta)
		}
	}
	if thought.String() != "Let me think about it. It is simple." || text.String() != "I have thought about it." || last != "response.completed" {
		t.Errorf("thought %q, text %q, last %s", &thought, &text, last)
	}
}

func TestFailuresOfResponsesHaveTheirStatus(t *testing.T) {
	t.Parallel()
	s := start(t)
	if status, body := postResponses(t, s, true, said("user", "http-400")); status != http.StatusBadRequest || !strings.Contains(body, "scripted failure") {
		t.Errorf("%d %s", status, body)
	}
}
