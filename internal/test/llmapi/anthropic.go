package llmapi

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// anthropicRequest has the fields of a request to /v1/messages that determine the reply.
type anthropicRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role    string           `json:"role"`
		Content anthropicContent `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Name string `json:"name"`
	} `json:"tools"`
}

// anthropicContent is the content of a message: blocks, or a single text as a string.
type anthropicContent []anthropicBlock

type anthropicBlock struct {
	Type      string           `json:"type"`
	Text      string           `json:"text"`
	ID        string           `json:"id"`          // of a tool call
	ToolUseID string           `json:"tool_use_id"` // of a tool result
	Content   anthropicContent `json:"content"`     // of a tool result
}

func (c *anthropicContent) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		*c = anthropicContent{{Type: "text", Text: s}}
		return nil
	}
	return json.Unmarshal(data, (*[]anthropicBlock)(c))
}

func (c anthropicContent) text() string {
	var b strings.Builder
	for _, block := range c {
		b.WriteString(block.Text)
	}
	return b.String()
}

// reminderPattern matches the text that the agent's program adds to the user's text.
var reminderPattern = regexp.MustCompile(`(?s)<system-reminder>.*?</system-reminder>`)

func (r anthropicRequest) question() question {
	var q question
	for _, t := range r.Tools {
		q.tools = append(q.tools, t.Name)
	}
	for _, m := range r.Messages {
		if m.Role != "user" {
			continue
		}
		for _, b := range m.Content {
			switch b.Type {
			case "tool_result":
				q.results = append(q.results, b.Content.text())
			case "text":
				q.notices += strings.Count(b.Text, "<task-notification>")
				if s := strings.TrimSpace(reminderPattern.ReplaceAllString(b.Text, "")); s != "" {
					q.texts = append(q.texts, s)
					q.results, q.notices = nil, 0
				}
			}
		}
	}
	return q
}

func (s *Server) anthropicMessages(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	var req anthropicRequest
	if err := json.Unmarshal(body, &req); err != nil {
		anthropicError(w, http.StatusBadRequest, "not a request: "+err.Error())
		return
	}
	q := req.question()
	word, a := q.answer()
	rec := Request{
		Path: r.URL.Path, Header: r.Header.Clone(), Body: body, Model: req.Model,
		Scenario: word, Texts: q.texts, Results: q.results, Tools: q.tools, Status: http.StatusOK,
	}
	if s.refuses(w, rec, req.refusal(), anthropicError) {
		return
	}
	if a.status != 0 {
		rec.Status = a.status
		s.record(rec)
		anthropicError(w, a.status, a.failure(r))
		return
	}
	m := newAnthropicMessage(req, a)
	rec.Usage = m.Usage
	s.record(rec)
	if req.Stream {
		s.anthropicStream(w, r, m, a)
		return
	}
	writeJSON(w, http.StatusOK, m)
}

// anthropicMessage is a complete reply.
type anthropicMessage struct {
	ID           string           `json:"id"`
	Type         string           `json:"type"`
	Role         string           `json:"role"`
	Model        string           `json:"model"`
	Content      []map[string]any `json:"content"`
	StopReason   any              `json:"stop_reason"`
	StopSequence any              `json:"stop_sequence"`
	Usage        Usage            `json:"usage"`
}

func newAnthropicMessage(req anthropicRequest, a answer) anthropicMessage {
	m := anthropicMessage{
		ID: "msg_" + rand.Text(), Type: "message", Role: "assistant", Model: req.Model, StopReason: a.end.word("end_turn", "max_tokens", "refusal"),
		// As with a real cache: the system prompt is read from it, the conversation up to here
		// is written to it.
		Usage: Usage{InputTokens: 12, CacheReadTokens: 15_000, CacheWriteTokens: int64(40 * len(req.Messages))},
	}
	if a.usesTool() {
		m.StopReason = "tool_use"
	}
	for _, b := range a.blocks {
		m.Content = append(m.Content, anthropicBlockOf(b))
		m.Usage.OutputTokens += int64(8 + len(b.chunks))
	}
	return m
}

func anthropicBlockOf(b block) map[string]any {
	switch b.kind {
	case blockThinking:
		return map[string]any{"type": "thinking", "thinking": strings.Join(b.chunks, ""), "signature": "c2NyaXB0ZWQ="}
	case blockTool:
		return map[string]any{"type": "tool_use", "id": "toolu_" + rand.Text(), "name": b.tool, "input": b.input}
	default:
		return map[string]any{"type": "text", "text": strings.Join(b.chunks, "")}
	}
}

func (s *Server) anthropicCountTokens(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"input_tokens": len(body) / 4})
}

func (s *Server) anthropicModels(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"data":     []any{map[string]string{"type": "model", "id": "scripted", "display_name": "Scripted"}},
		"has_more": false,
	})
}

func anthropicError(w http.ResponseWriter, status int, message string) {
	kind := map[int]string{
		http.StatusBadRequest: "invalid_request_error", http.StatusUnauthorized: "authentication_error", statusOverloaded: "overloaded_error",
	}[status]
	if kind == "" {
		kind = "api_error"
	}
	writeJSON(w, status, map[string]any{
		"type":  "error",
		"error": map[string]string{"type": kind, "message": message},
	})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, fmt.Sprintf("cannot encode the reply: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // the client may have disconnected
}
