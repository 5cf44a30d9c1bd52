package llmapi

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
)

// geminiRequest has the fields of a request to a Gemini model that determine the reply.
type geminiRequest struct {
	Contents []struct {
		Role  string       `json:"role"`
		Parts []geminiPart `json:"parts"`
	} `json:"contents"`
	Tools []struct {
		FunctionDeclarations []struct {
			Name string `json:"name"`
		} `json:"functionDeclarations"`
	} `json:"tools"`
}

type geminiPart struct {
	Text             string              `json:"text,omitempty"`
	Thought          bool                `json:"thought,omitempty"`
	FunctionCall     *geminiFunctionCall `json:"functionCall,omitempty"`
	FunctionResponse *struct {
		Response json.RawMessage `json:"response"`
	} `json:"functionResponse,omitempty"`
}

type geminiFunctionCall struct {
	Name string         `json:"name"`
	Args map[string]any `json:"args"`
}

// contextPattern matches the text that the agent's program adds to the user's text.
var contextPattern = regexp.MustCompile(`(?s)<(session_context|hook_context)>.*?</(session_context|hook_context)>`)

func (r geminiRequest) question() question {
	var q question
	for _, t := range r.Tools {
		for _, f := range t.FunctionDeclarations {
			q.tools = append(q.tools, f.Name)
		}
	}
	for _, c := range r.Contents {
		if c.Role != "user" {
			continue
		}
		for _, p := range c.Parts {
			if p.FunctionResponse != nil {
				q.results = append(q.results, string(p.FunctionResponse.Response))
				continue
			}
			if s := strings.TrimSpace(contextPattern.ReplaceAllString(p.Text, "")); s != "" {
				q.texts = append(q.texts, s)
				q.results = nil
			}
		}
	}
	return q
}

// gemini serves /v1beta/models/{model}:{method}.
func (s *Server) gemini(w http.ResponseWriter, r *http.Request) {
	model, method, _ := strings.Cut(r.PathValue("call"), ":")
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	if method == "countTokens" {
		writeJSON(w, http.StatusOK, map[string]int{"totalTokens": len(body) / 4})
		return
	}
	var req geminiRequest
	if err := json.Unmarshal(body, &req); err != nil {
		geminiError(w, http.StatusBadRequest, "not a request: "+err.Error())
		return
	}
	q := req.question()
	word, a := q.answer()
	rec := Request{
		Path: r.URL.Path, Header: r.Header.Clone(), Body: body, Model: model,
		Scenario: word, Texts: q.texts, Results: q.results, Tools: q.tools, Status: http.StatusOK,
	}
	if s.refuses(w, rec, req.refusal(), geminiError) {
		return
	}
	if a.status != 0 {
		rec.Status = geminiStatus(a.status)
		s.record(rec)
		geminiError(w, rec.Status, a.failure(r))
		return
	}
	m := newGeminiMessage(req, a)
	rec.Usage = Usage{
		InputTokens:     m.usage.PromptTokenCount - m.usage.CachedContentTokenCount,
		CacheReadTokens: m.usage.CachedContentTokenCount,
		OutputTokens:    m.usage.CandidatesTokenCount,
	}
	s.record(rec)
	if method == "streamGenerateContent" {
		s.geminiStream(w, r, m, a)
		return
	}
	writeJSON(w, http.StatusOK, m.chunk(m.parts, true))
}

// geminiMessage is a complete reply.
type geminiMessage struct {
	parts  []geminiPart
	usage  geminiUsage
	reason string // why it ends
}

// geminiUsage counts tokens. The prompt includes the cached tokens.
type geminiUsage struct {
	PromptTokenCount        int64 `json:"promptTokenCount"`
	CachedContentTokenCount int64 `json:"cachedContentTokenCount"`
	CandidatesTokenCount    int64 `json:"candidatesTokenCount"`
	TotalTokenCount         int64 `json:"totalTokenCount"`
}

func newGeminiMessage(req geminiRequest, a answer) geminiMessage {
	m := geminiMessage{reason: a.end.word("STOP", "MAX_TOKENS", "SAFETY"), usage: geminiUsage{
		PromptTokenCount: 9_000 + int64(40*len(req.Contents)), CachedContentTokenCount: 8_000,
	}}
	for _, b := range a.blocks {
		m.parts = append(m.parts, geminiPartOf(b))
		m.usage.CandidatesTokenCount += int64(8 + len(b.chunks))
	}
	m.usage.TotalTokenCount = m.usage.PromptTokenCount + m.usage.CandidatesTokenCount
	return m
}

func geminiPartOf(b block) geminiPart {
	switch b.kind {
	case blockTool:
		return geminiPart{FunctionCall: &geminiFunctionCall{Name: b.tool, Args: b.input}}
	default:
		return geminiPart{Text: strings.Join(b.chunks, ""), Thought: b.kind == blockThinking}
	}
}

// chunk returns one response of a stream. The last one contains the finish reason and the
// usage.
func (m geminiMessage) chunk(parts []geminiPart, last bool) map[string]any {
	candidate := map[string]any{"index": 0, "content": map[string]any{"role": "model", "parts": parts}}
	chunk := map[string]any{"candidates": []any{candidate}, "modelVersion": "scripted"}
	if last {
		candidate["finishReason"] = m.reason
		chunk["usageMetadata"] = m.usage
	}
	return chunk
}

// geminiStream sends a reply as server-sent events. As in the real API, texts come in pieces,
// thoughts and calls in one.
func (s *Server) geminiStream(w http.ResponseWriter, r *http.Request, m geminiMessage, a answer) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	send := func(parts []geminiPart, last bool) {
		data, err := json.Marshal(m.chunk(parts, last))
		if err != nil {
			panic("a scenario's tool input is not JSON: " + err.Error())
		}
		_, _ = w.Write([]byte("data: " + string(data) + "\r\n\r\n")) // the context ends with the client
		_ = flush()
	}
	hold := a.hold
	for i, b := range a.blocks {
		pieces := []geminiPart{m.parts[i]}
		if b.kind == blockText {
			pieces = pieces[:0]
			for _, c := range b.chunks {
				pieces = append(pieces, geminiPart{Text: c})
			}
		}
		for n, p := range pieces {
			send([]geminiPart{p}, false)
			if hold && n == len(pieces)/2 {
				hold = false
				if !s.hold(r.Context()) {
					return
				}
			}
		}
	}
	if a.end == endBroken {
		_, _ = w.Write([]byte(`data: {"error":{"code":500,"message":"` + brokenMessage + `","status":"INTERNAL"}}` + "\r\n\r\n"))
		return
	}
	send([]geminiPart{{Text: ""}}, true)
}

// geminiStatus returns this API's status for a failure.
func geminiStatus(status int) int {
	if status == statusOverloaded {
		return http.StatusServiceUnavailable
	}
	return status
}

func geminiError(w http.ResponseWriter, status int, message string) {
	kind := "INTERNAL"
	switch status {
	case http.StatusBadRequest:
		kind = "INVALID_ARGUMENT"
	case http.StatusServiceUnavailable:
		kind = "UNAVAILABLE"
	}
	writeJSON(w, status, map[string]any{
		"error": map[string]any{"code": status, "message": message, "status": kind},
	})
}
