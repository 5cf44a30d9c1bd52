package llmapi

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// responsesRequest has the fields of a request to OpenAI's /v1/responses that determine the
// reply.
type responsesRequest struct {
	Model  string          `json:"model"`
	Stream bool            `json:"stream"`
	Input  []responsesItem `json:"input"`
	Tools  []responsesTool `json:"tools"`
}

type responsesItem struct {
	Type    string           `json:"type"`
	ID      string           `json:"id"`
	CallID  string           `json:"call_id"` // of a tool call and its result
	Role    string           `json:"role"`
	Content responsesContent `json:"content"` // of a message
	Output  responsesContent `json:"output"`  // of a tool call's result
}

// responsesTool is a tool, or a namespace of tools. The input of a tool of type "custom" is
// text instead of JSON.
type responsesTool struct {
	Type  string          `json:"type"`
	Name  string          `json:"name"`
	Tools []responsesTool `json:"tools"`
}

// responsesContent is a text. In JSON it is a string, or parts with texts.
type responsesContent string

func (c *responsesContent) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
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
	*c = responsesContent(b.String())
	return nil
}

// harnessPattern matches the text that Codex sends to the model in the role of the user.
var harnessPattern = regexp.MustCompile(
	`(?s)^\s*(<(environment_context|turn_aborted|user_instructions|subagent_notification|skill|hook_prompt)\b|# AGENTS\.md instructions)`)

func (r responsesRequest) question() question {
	var q question
	for _, t := range r.Tools {
		q.tools = append(q.tools, t.names("")...)
		if t.Type == toolSearch {
			// Codex accepts this tool without offering it; a real model would search for it
			// first.
			q.tools = append(q.tools, codexSpawn)
		}
	}
	for _, item := range r.Input {
		switch {
		case strings.HasSuffix(item.Type, "_call_output"), item.Type == "tool_search_output":
			q.results = append(q.results, string(item.Output))
		case item.Role == "user" && !harnessPattern.MatchString(string(item.Content)):
			q.texts = append(q.texts, strings.TrimSpace(string(item.Content)))
			q.results = nil
		}
	}
	return q
}

// toolSearch is the tool with which a model finds tools that are not offered directly.
const toolSearch = "tool_search"

// codexSpawn is Codex's tool that starts a subagent.
const codexSpawn = "multi_agent_v1/spawn_agent"

// names returns the names under which a tool can be called. Tools in a namespace have its name
// as a prefix.
func (t responsesTool) names(space string) []string {
	switch {
	case t.Name == "":
		return []string{t.Type} // a tool that the vendor defines
	case len(t.Tools) == 0:
		return []string{space + t.Name}
	}
	var list []string
	for _, inner := range t.Tools {
		list = append(list, inner.names(t.Name+"/")...)
	}
	return list
}

// takesText reports whether the input of a tool is text instead of JSON.
func (r responsesRequest) takesText(name string) bool {
	return slices.ContainsFunc(r.Tools, func(t responsesTool) bool { return t.Type == "custom" && t.Name == name })
}

func (s *Server) responses(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	var req responsesRequest
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
	resp := newResponse(req, a)
	rec.Usage = resp.usage
	s.record(rec)
	if req.Stream {
		s.responsesStream(w, r, resp, a)
		return
	}
	writeJSON(w, http.StatusOK, resp.body("completed"))
}

// response is a complete reply.
type response struct {
	id    string
	model string
	items []map[string]any // one for each block of the answer
	usage Usage
}

func newResponse(req responsesRequest, a answer) response {
	r := response{
		id: "resp_" + rand.Text(), model: req.Model,
		// As with a real cache: most of the input is read from it.
		usage: Usage{InputTokens: int64(40 * len(req.Input)), CacheReadTokens: 15_000},
	}
	for _, b := range a.blocks {
		r.items = append(r.items, req.itemOf(b))
		r.usage.OutputTokens += int64(8 + len(b.chunks))
	}
	return r
}

func (r responsesRequest) itemOf(b block) map[string]any {
	switch b.kind {
	case blockThinking:
		return map[string]any{
			"type": "reasoning", "id": "rs_" + rand.Text(), "encrypted_content": "c2NyaXB0ZWQ=",
			"summary": []any{map[string]any{"type": "summary_text", "text": strings.Join(b.chunks, "")}},
		}
	case blockTool:
		call := "call_" + rand.Text()
		if b.tool == toolSearch {
			return map[string]any{
				"type": "tool_search_call", "id": "tsc_" + rand.Text(), "call_id": call, "status": "completed",
				"execution": "client", "arguments": b.input,
			}
		}
		if r.takesText(b.tool) {
			return map[string]any{
				"type": "custom_tool_call", "id": "ctc_" + rand.Text(), "call_id": call, "status": "completed",
				"name": b.tool, "input": b.input["input"],
			}
		}
		item := map[string]any{
			"type": "function_call", "id": "fc_" + rand.Text(), "call_id": call, "status": "completed",
			"name": b.tool, "arguments": strings.Join(jsonPieces(b.input), ""),
		}
		if space, name, ok := strings.Cut(b.tool, "/"); ok {
			item["namespace"], item["name"] = space, name
		}
		return item
	default:
		return map[string]any{
			"type": "message", "id": "msg_" + rand.Text(), "role": "assistant", "status": "completed",
			"content": []any{map[string]any{"type": "output_text", "text": strings.Join(b.chunks, ""), "annotations": []any{}}},
		}
	}
}

// body returns the reply as JSON. Its input tokens include the cached tokens.
func (r response) body(status string) map[string]any {
	body := map[string]any{"id": r.id, "object": "response", "model": r.model, "status": status, "output": []any{}}
	if status == "completed" {
		in := r.usage.InputTokens + r.usage.CacheReadTokens
		body["output"] = r.items
		body["usage"] = map[string]any{
			"input_tokens": in, "input_tokens_details": map[string]any{"cached_tokens": r.usage.CacheReadTokens},
			"output_tokens": r.usage.OutputTokens, "output_tokens_details": map[string]any{"reasoning_tokens": 0},
			"total_tokens": in + r.usage.OutputTokens,
		}
	}
	return body
}

// responsesStream sends a reply as server-sent events.
func (s *Server) responsesStream(w http.ResponseWriter, r *http.Request, resp response, a answer) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := sse{w: w, flush: http.NewResponseController(w).Flush}
	out.send("response.created", map[string]any{"response": resp.body("in_progress")})
	hold := a.hold
	for i, b := range a.blocks {
		item := resp.items[i]
		out.send("response.output_item.added", map[string]any{"output_index": i, "item": unfinished(item)})
		if b.kind == blockThinking {
			out.send("response.reasoning_summary_part.added", map[string]any{
				"item_id": item["id"], "output_index": i, "summary_index": 0, "part": map[string]any{"type": "summary_text", "text": ""},
			})
		}
		for n, piece := range b.chunks {
			if hold && n == len(b.chunks)/2 {
				hold = false
				if !s.hold(r.Context()) {
					return
				}
			}
			typ := "response.output_text.delta"
			if b.kind == blockThinking {
				typ = "response.reasoning_summary_text.delta"
			}
			out.send(typ, map[string]any{
				"item_id": item["id"], "output_index": i, "content_index": 0, "summary_index": 0, "delta": piece,
			})
		}
		out.send("response.output_item.done", map[string]any{"output_index": i, "item": item})
	}
	last := map[string]any{}
	switch a.end {
	case endWell:
		last = resp.body("completed")
	case endBroken:
		last = resp.body("failed")
		last["error"] = map[string]any{"code": "server_error", "message": brokenMessage}
	case endLimit, endFiltered:
		last = resp.body("incomplete")
		last["incomplete_details"] = map[string]any{"reason": a.end.word("", "max_output_tokens", "content_filter")}
	}
	out.send("response."+last["status"].(string), map[string]any{"response": last})
}

// unfinished returns an item as it is before its deltas.
func unfinished(item map[string]any) map[string]any {
	start := map[string]any{}
	for k, v := range item {
		start[k] = v
	}
	switch item["type"] {
	case "message":
		start["content"], start["status"] = []any{}, "in_progress"
	case "reasoning":
		start["summary"] = []any{}
	case "function_call":
		start["arguments"], start["status"] = "", "in_progress"
	case "custom_tool_call":
		start["input"], start["status"] = "", "in_progress"
	}
	return start
}
