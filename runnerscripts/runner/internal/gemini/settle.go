package gemini

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// settle gives each call one result and each result a call, as the model's API demands.
func (r *reader) settle() {
	turns := map[bool]*message{} // the message whose calls the next results answer; by forgotten
	for _, m := range r.messages {
		switch m.Type {
		case "gemini":
			m.adoptCalls()
			turns[m.forgotten] = m
		case "user":
			if !r.takeResults(m, turns[m.forgotten]) {
				turns[m.forgotten] = nil
			}
		}
	}
	for _, m := range r.messages {
		for _, c := range m.calls {
			c.ownResult()
			if !c.hasResult() {
				c.setResult(c.response(map[string]string{"error": "The call was interrupted. It has no result."}))
			}
		}
	}
}

// adoptCalls reads the calls in the content of a message, where the program writes them when it
// writes its history again, and removes them from there.
func (m *message) adoptCalls() {
	var text content
	changed := false
	for _, p := range m.Content {
		if p.FunctionCall != nil {
			c := toolCall{Status: "success", Time: m.Time}
			if json.Unmarshal(p.FunctionCall, &c) == nil && !slices.ContainsFunc(m.calls, func(k *toolCall) bool { return k.ID == c.ID }) {
				c.raw = nil
				m.calls = append(m.calls, &c)
			}
		}
		if p.FunctionCall != nil || p.Thought {
			changed = true
		} else {
			text = append(text, p)
		}
	}
	if changed {
		m.Content, m.changed = text, true
	}
}

// takeResults moves the results in a message of the user to the calls of turn. It returns false if
// there are none.
func (r *reader) takeResults(m, turn *message) bool {
	if !slices.ContainsFunc(m.Content, func(p part) bool { return p.FunctionResponse != nil }) {
		return false
	}
	var raw []json.RawMessage // the parts, when they are needed
	var text content
	var open *toolCall // takes the parts that follow its result, such as images
	for i, p := range m.Content {
		switch f := p.FunctionResponse; {
		case f != nil:
			r.sent[f.ID] = true
			open = nil
			if turn == nil {
				continue // the program has dropped the call
			}
			c := turn.call(*f)
			if c == nil {
				c = f.rejected()
				c.Time = m.Time
				turn.calls = append(turn.calls, c)
			}
			if !c.hasResult() {
				if raw == nil {
					raw = partsOf(m.line)
				}
				c.setResult(raw[i : i+1])
				open = c
			}
		case p.Text != "":
			text = append(text, p)
		case open != nil:
			open.setResult(append(open.results(), raw[i]))
		}
	}
	m.Content, m.changed, m.dropped = text, true, len(text) == 0
	return true
}

// partsOf returns the parts of the content in a record.
func partsOf(line string) []json.RawMessage {
	var raw struct {
		Content json.RawMessage `json:"content"`
	}
	var list []json.RawMessage
	_ = json.Unmarshal([]byte(line), &raw) // a line that was read before
	if json.Unmarshal(raw.Content, &list) != nil {
		return []json.RawMessage{raw.Content} // a single part
	}
	return list
}

// call returns the call of a response.
func (m *message) call(f functionResponse) *toolCall {
	for _, c := range m.calls {
		if c.ID == f.ID && f.ID != "" || f.ID == "" && c.Name == f.Name && !c.hasResult() {
			return c
		}
	}
	return nil
}

// results returns the parts of a call's result.
func (c *toolCall) results() []json.RawMessage {
	var list []json.RawMessage
	_ = json.Unmarshal(c.Result, &list) // else it is no list
	return list
}

func (c *toolCall) hasResult() bool { return len(c.Result) > 0 && string(c.Result) != "null" }

func (c *toolCall) setResult(parts []json.RawMessage) {
	c.Result = mustMarshal(parts)
	c.changed = true
}

// response returns a result with one part.
func (c *toolCall) response(response any) []json.RawMessage {
	return []json.RawMessage{mustMarshal(map[string]any{
		"functionResponse": map[string]any{"id": c.ID, "name": c.Name, "response": response},
	})}
}

// ownResult removes the responses to other calls from a call's result: the program writes all of
// a message there when it writes its history again.
func (c *toolCall) ownResult() {
	if bytes.Count(c.Result, []byte(`"functionResponse"`)) < 2 {
		return
	}
	list := c.results()
	var kept []json.RawMessage
	own := true
	for _, raw := range list {
		var p part
		if json.Unmarshal(raw, &p) == nil && p.FunctionResponse != nil {
			own = p.FunctionResponse.ID == c.ID
		}
		if own {
			kept = append(kept, raw)
		}
	}
	if len(kept) < len(list) && len(kept) > 0 {
		c.setResult(kept)
	}
}

// maxText limits the text of a session file, in bytes. A longer one is shortened, because a transcript
// that is too long for its line could not be stored at all. maxWords limits the strings in what is
// shortened.
const (
	maxText  = 24 << 20
	maxWords = 16 << 10
)

// shortenUnanswered shortens the results of calls that the model has not answered. One of them may be
// longer than the model's context: then the program can send nothing more to the model.
func (h history) shortenUnanswered() {
	var before *message
	shorten := func() {
		for i := 0; before != nil && i < len(before.calls); i++ {
			if c := before.calls[i]; len(c.Result) > maxWords {
				c.Result, c.changed = json.RawMessage(shorten(string(c.Result))), true
			}
		}
	}
	for _, m := range h.messages {
		switch {
		case m.forgotten || m.dropped:
		case m.Type == "gemini":
			before = m
		case m.Type == "user":
			shorten()
			before = nil
		}
	}
	shorten()
}

// text returns the text of a session file with the history, in which the program finds what it
// remembers, once.
func (h history) text() string { return h.within(maxText) }

// within returns the text with at most about most bytes, if that is possible.
func (h history) within(most int) string {
	h.shortenUnanswered()
	lines := []string{}
	if h.header != "" {
		lines = append(lines, h.header)
	}
	size := 0
	for _, m := range h.messages {
		if m.dropped || m.hidden && (m.forgotten || strings.HasPrefix(m.Content.text(), sessionContext)) {
			continue
		}
		line := m.render()
		if m.forgotten {
			line = `{"agentenvForgotten":` + line + "}"
		}
		size += len(line)
		lines = append(lines, line)
	}
	if len(h.set) > 0 {
		lines = append(lines, string(mustMarshal(map[string]any{"$set": h.set})))
	}
	// Shorten the oldest lines first: the program may need the others.
	for i := 0; i < len(lines) && size > most; i++ {
		size -= len(lines[i])
		lines[i] = shorten(lines[i])
		size += len(lines[i])
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

// render returns the record of a message.
func (m *message) render() string {
	if !m.changed && m.hidden == m.Hidden && len(m.calls) == 0 && len(m.ToolCalls) == 0 {
		return m.line
	}
	fields := map[string]any{}
	var old map[string]json.RawMessage
	_ = json.Unmarshal([]byte(m.line), &old) // a line that was read before
	for key, value := range old {
		fields[key] = value
	}
	delete(fields, "toolCalls")
	if m.changed {
		fields["content"] = m.Content.text()
		if m.Type == "user" {
			fields["content"] = []any{map[string]string{"text": m.Content.text()}}
		}
	}
	if m.hidden {
		fields["agentenvHidden"] = true
	}
	var calls []json.RawMessage
	for _, c := range m.calls {
		calls = append(calls, c.render())
	}
	if calls != nil {
		fields["toolCalls"] = calls
	}
	return string(mustMarshal(fields))
}

// render returns a call in a record.
func (c *toolCall) render() json.RawMessage {
	if c.raw != nil && !c.changed {
		return c.raw
	}
	fields := map[string]json.RawMessage{}
	if c.raw == nil || json.Unmarshal(c.raw, &fields) != nil {
		for key, value := range map[string]string{"id": c.ID, "name": c.Name, "status": c.Status, "timestamp": c.Time, "displayName": c.Name} {
			fields[key] = mustMarshal(value)
		}
		fields["args"] = json.RawMessage("{}")
		if len(c.Args) > 0 {
			fields["args"] = c.Args
		}
		if c.ResultDisplay.text != "" {
			fields["resultDisplay"] = mustMarshal(c.ResultDisplay.text)
		}
	}
	fields["result"] = c.Result
	return mustMarshal(fields)
}

// shorten cuts the middle out of the long strings in a line of JSON.
func shorten(line string) string {
	var v any
	if json.Unmarshal([]byte(line), &v) != nil {
		return line
	}
	return string(mustMarshal(shortened(v)))
}

func shortened(v any) any {
	switch v := v.(type) {
	case string:
		return cutMiddle(v)
	case []any:
		for i := range v {
			v[i] = shortened(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = shortened(v[key])
		}
	}
	return v
}

func cutMiddle(s string) string {
	if len(s) <= maxWords {
		return s
	}
	head, tail := s[:maxWords/2], s[len(s)-maxWords/2:]
	for len(head) > 0 && !utf8.RuneStart(s[len(head)]) {
		head = head[:len(head)-1]
	}
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return fmt.Sprintf("%s\n[... %d bytes are left out: the conversation is too long to be stored ...]\n%s", head, len(s)-len(head)-len(tail), tail)
}

// mustMarshal returns the JSON of a value that consists of text and JSON.
func mustMarshal(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic("a value of text and JSON is no JSON: " + err.Error()) // cannot happen
	}
	return data
}
