package llmapi

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// anthropicStream sends a reply as server-sent events.
func (s *Server) anthropicStream(w http.ResponseWriter, r *http.Request, m anthropicMessage, a answer) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := sse{w: w, flush: http.NewResponseController(w).Flush}

	start := m
	start.Content, start.StopReason = []map[string]any{}, nil
	start.Usage.OutputTokens = 1
	out.send("message_start", map[string]any{"message": start})
	out.send("ping", nil)
	hold := a.hold
	for i, b := range a.blocks {
		out.send("content_block_start", map[string]any{"index": i, "content_block": emptied(m.Content[i])})
		for n, delta := range deltas(b, m.Content[i]) {
			if hold && n == len(b.chunks)/2 {
				hold = false
				if !s.hold(r.Context()) {
					return
				}
			}
			out.send("content_block_delta", map[string]any{"index": i, "delta": delta})
		}
		out.send("content_block_stop", map[string]any{"index": i})
	}
	if a.end == endBroken {
		out.send("error", map[string]any{"error": map[string]any{"type": "api_error", "message": brokenMessage}})
		return
	}
	out.send("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": m.StopReason, "stop_sequence": nil},
		"usage": m.Usage,
	})
	out.send("message_stop", nil)
}

// emptied returns a block as it is before its deltas.
func emptied(b map[string]any) map[string]any {
	switch b["type"] {
	case "tool_use":
		return map[string]any{"type": "tool_use", "id": b["id"], "name": b["name"], "input": map[string]any{}}
	case "thinking":
		return map[string]any{"type": "thinking", "thinking": "", "signature": ""}
	default:
		return map[string]any{"type": "text", "text": ""}
	}
}

// deltas returns the deltas in which a block is sent.
func deltas(b block, whole map[string]any) []map[string]any {
	var list []map[string]any
	switch b.kind {
	case blockThinking:
		for _, c := range b.chunks {
			list = append(list, map[string]any{"type": "thinking_delta", "thinking": c})
		}
		list = append(list, map[string]any{"type": "signature_delta", "signature": whole["signature"]})
	case blockTool:
		for _, c := range jsonPieces(b.input) {
			list = append(list, map[string]any{"type": "input_json_delta", "partial_json": c})
		}
	default:
		for _, c := range b.chunks {
			list = append(list, map[string]any{"type": "text_delta", "text": c})
		}
	}
	return list
}

// jsonPieces returns a tool's input as JSON, split in the middle as models do.
func jsonPieces(input map[string]any) []string {
	data, err := json.Marshal(input)
	if err != nil {
		panic(fmt.Sprintf("a scenario's tool input is not JSON: %v", err))
	}
	half := len(data) / 2
	return []string{"", string(data[:half]), string(data[half:])}
}

// sse writes server-sent events. It ignores write errors: if the client disconnects, the
// request's context ends the stream.
type sse struct {
	w     http.ResponseWriter
	flush func() error
}

func (s sse) send(typ string, fields map[string]any) {
	event := map[string]any{"type": typ}
	for k, v := range fields {
		event[k] = v
	}
	data, err := json.Marshal(event)
	if err != nil {
		panic(fmt.Sprintf("an event is not JSON: %v", err))
	}
	_, _ = fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", typ, data)
	_ = s.flush()
}
