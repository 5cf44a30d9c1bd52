package llmapi

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// chatStream sends a reply as unnamed server-sent events.
func (s *Server) chatStream(w http.ResponseWriter, r *http.Request, c chatCompletion, a answer) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := sse{w: w, flush: http.NewResponseController(w).Flush}
	chunk := func(delta map[string]any, finish any) {
		out.data(map[string]any{
			"id": c.id, "object": "chat.completion.chunk", "created": 0, "model": c.model,
			"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}},
		})
	}
	chunk(map[string]any{"role": "assistant", "content": ""}, nil)
	hold, calls := a.hold, c.calls
	for _, b := range a.blocks {
		if b.kind == blockTool {
			for _, delta := range chatCallDeltas(calls[0], b) {
				chunk(delta, nil)
			}
			calls = calls[1:]
			continue
		}
		for n, said := range b.chunks {
			if hold && n == len(b.chunks)/2 {
				hold = false
				if !s.hold(r.Context()) {
					return
				}
			}
			chunk(map[string]any{chatField(b.kind): said}, nil)
		}
	}
	if a.end == endBroken {
		out.data(map[string]any{"error": map[string]any{"type": "scripted_error", "message": brokenMessage, "code": nil, "param": nil}})
		return
	}
	chunk(map[string]any{}, c.finish)
	out.data(map[string]any{
		"id": c.id, "object": "chat.completion.chunk", "created": 0, "model": c.model,
		"choices": []any{}, "usage": c.usage(),
	})
	out.write("data: [DONE]\n\n")
}

// chatField returns the field of a delta for text of a kind. OpenAI's own API has no field for
// thoughts; other vendors use this one.
func chatField(kind blockKind) string {
	if kind == blockThinking {
		return "reasoning_content"
	}
	return "content"
}

// chatCallDeltas returns the deltas in which a tool call is sent: its name first, then its
// input.
func chatCallDeltas(call map[string]any, b block) []map[string]any {
	var list []map[string]any
	for i, piece := range jsonPieces(b.input) {
		part := map[string]any{"index": call["index"], "function": map[string]any{"arguments": piece}}
		if i == 0 {
			part["id"], part["type"] = call["id"], "function"
			part["function"] = map[string]any{"name": b.tool, "arguments": piece}
		}
		list = append(list, map[string]any{"tool_calls": []any{part}})
	}
	return list
}

// data sends an unnamed event.
func (s sse) data(v any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("an event is not JSON: %v", err))
	}
	s.write("data: " + string(data) + "\n\n")
}

func (s sse) write(text string) {
	_, _ = fmt.Fprint(s.w, text)
	_ = s.flush()
}
