package llmapi

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"strings"
)

// chatRequest has the fields of a request to OpenAI's /v1/chat/completions that determine the
// reply.
type chatRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role       string      `json:"role"`
		Content    chatContent `json:"content"`
		ToolCallID string      `json:"tool_call_id"` // of a tool's result
		ToolCalls  []struct {
			ID string `json:"id"`
		} `json:"tool_calls"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	} `json:"tools"`
}

// chatContent is the text of a message. In JSON it is a string, parts, or null.
type chatContent string

func (c *chatContent) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '[' {
		return json.Unmarshal(data, (*string)(c))
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	*c = chatContent(b.String())
	return nil
}

func (r chatRequest) question() question {
	var q question
	for _, t := range r.Tools {
		q.tools = append(q.tools, t.Function.Name)
	}
	for _, m := range r.Messages {
		switch m.Role {
		case "tool":
			q.results = append(q.results, string(m.Content))
		case "user":
			s := strings.TrimSpace(reminderPattern.ReplaceAllString(string(m.Content), ""))
			if s != "" {
				q.texts = append(q.texts, s)
				q.results = nil
			}
		}
	}
	return q
}

func (s *Server) chatCompletions(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	var req chatRequest
	if err := json.Unmarshal(body, &req); err != nil {
		chatError(w, http.StatusBadRequest, "not a request: "+err.Error())
		return
	}
	q := req.question()
	word, a := q.answer()
	rec := Request{
		Path: r.URL.Path, Header: r.Header.Clone(), Body: body, Model: req.Model,
		Scenario: word, Texts: q.texts, Results: q.results, Tools: q.tools, Status: http.StatusOK,
	}
	if s.refuses(w, rec, req.refusal(), chatError) {
		return
	}
	if a.status != 0 {
		rec.Status = a.status
		s.record(rec)
		chatError(w, a.status, a.failure(r))
		return
	}
	c := newChatCompletion(req, a)
	rec.Usage = c.cost
	s.record(rec)
	if req.Stream {
		s.chatStream(w, r, c, a)
		return
	}
	writeJSON(w, http.StatusOK, c.whole(a))
}

// chatCompletion is a complete reply.
type chatCompletion struct {
	id     string
	model  string
	finish string
	calls  []map[string]any // the tool calls among the answer's blocks, in order
	cost   Usage
}

func newChatCompletion(req chatRequest, a answer) chatCompletion {
	c := chatCompletion{
		id: "chatcmpl-" + rand.Text(), model: req.Model, finish: a.end.word("stop", "length", "content_filter"),
		// A part of the prompt is read from the cache. This API does not report writes to it.
		cost: Usage{InputTokens: int64(12 + 40*len(req.Messages)), CacheReadTokens: 15_000},
	}
	if a.usesTool() {
		c.finish = "tool_calls"
	}
	for _, b := range a.blocks {
		c.cost.OutputTokens += int64(8 + len(b.chunks))
		if b.kind == blockTool {
			c.calls = append(c.calls, map[string]any{
				"index": len(c.calls), "id": "call_" + rand.Text(), "type": "function",
				"function": map[string]any{"name": b.tool, "arguments": strings.Join(jsonPieces(b.input), "")},
			})
		}
	}
	return c
}

// usage returns the usage in this API's form: the prompt includes the cached tokens.
func (c chatCompletion) usage() map[string]any {
	prompt := c.cost.InputTokens + c.cost.CacheReadTokens
	return map[string]any{
		"prompt_tokens":         prompt,
		"completion_tokens":     c.cost.OutputTokens,
		"total_tokens":          prompt + c.cost.OutputTokens,
		"prompt_tokens_details": map[string]any{"cached_tokens": c.cost.CacheReadTokens},
	}
}

// whole returns the reply to a request without streaming.
func (c chatCompletion) whole(a answer) map[string]any {
	message := map[string]any{"role": "assistant", "content": nil}
	for _, b := range a.blocks {
		said := strings.Join(b.chunks, "")
		switch b.kind {
		case blockThinking:
			message["reasoning_content"] = said
		case blockText:
			message["content"] = said
		case blockTool:
			message["tool_calls"] = c.calls
		}
	}
	return map[string]any{
		"id": c.id, "object": "chat.completion", "created": 0, "model": c.model, "usage": c.usage(),
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": c.finish}},
	}
}

func chatError(w http.ResponseWriter, status int, message string) {
	kind := "server_error"
	if status < http.StatusInternalServerError {
		kind = "invalid_request_error"
	}
	writeJSON(w, status, map[string]any{
		"error": map[string]any{"type": kind, "message": message, "param": nil, "code": nil},
	})
}
