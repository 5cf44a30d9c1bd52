package handoff

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// The bounds of a converted conversation, in bytes. The total is about 64,000 tokens, which
// leaves room in the context of every model that the agents use.
const (
	maxWhole  = 256 << 10
	maxWords  = 32 << 10 // of the text of one message
	maxOutput = 8 << 10  // of one tool call's output
	maxString = 4 << 10  // of one string in a tool call's input
	maxInput  = 16 << 10 // of one tool call's input
	// maxSummary bounds the summary of a conversation.
	maxSummary = 48 << 10
)

// Bounded returns the conversation within bounds: it cuts the middle out of long texts, inputs
// and outputs. If that is not enough, it drops the oldest items and starts with a user message
// that says so.
func (c Conversation) Bounded() Conversation { return c.within(maxWhole) }

func (c Conversation) within(whole int) Conversation {
	out := Conversation{Agent: c.Agent, Items: make([]Item, 0, len(c.Items))}
	for _, it := range c.Items {
		it.Text = cut(it.Text, maxWords)
		if it.Call != nil {
			call := *it.Call
			call.Input, call.Output = cutInput(call.Input), cut(call.Output, maxOutput)
			it.Call = &call
		}
		out.Items = append(out.Items, it)
	}
	first, size := len(out.Items), 0
	for first > 0 {
		if size += out.Items[first-1].size(); size > whole {
			break
		}
		first--
	}
	if first == 0 {
		return out
	}
	// Start at a prompt, unless the last prompt alone is too long.
	start := first
	for start < len(out.Items) && out.Items[start].Kind != User {
		start++
	}
	if start == len(out.Items) {
		start = first
	}
	note := Item{Kind: User, Time: out.Items[start].Time, Text: left(out.Items[:start])}
	out.Items = append([]Item{note}, out.Items[start:]...)
	return out
}

// size returns the approximate size of an item in a model's context, in bytes.
func (it Item) size() int {
	const frame = 64 // names and punctuation around it
	n := frame + len(it.Text)
	if it.Call != nil {
		n += len(it.Call.Input) + len(it.Call.Output)
	}
	return n
}

// left returns a text that describes the dropped items.
func left(items []Item) string {
	const mostPrompts, promptLength = 20, 400
	var prompts []string
	calls := 0
	for _, it := range items {
		switch it.Kind {
		case User:
			prompts = append(prompts, "- "+cut(strings.Join(strings.Fields(it.Text), " "), promptLength))
		case Tool:
			calls++
		}
	}
	omitted := ""
	if n := len(prompts) - mostPrompts; n > 0 {
		omitted, prompts = fmt.Sprintf("(%d more before these)\n", n), prompts[n:]
	}
	return fmt.Sprintf("[The beginning of this conversation is left out, because it is long: %d messages and %d tool calls. The user asked in it:\n%s%s]",
		len(items)-calls, calls, omitted, strings.Join(prompts, "\n"))
}

// cut removes the middle of a text that is longer than most bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	note := fmt.Sprintf("\n[... %d bytes are left out ...]\n", len(text)-most)
	head, tail := text[:most*2/3], text[len(text)-most/3:]
	for len(head) > 0 && !utf8.RuneStart(text[len(head)]) {
		head = head[:len(head)-1]
	}
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return head + note + tail
}

// cutInput shortens the strings in a tool's input, and drops the input if it is still too long.
func cutInput(raw json.RawMessage) json.RawMessage {
	if len(raw) <= maxString {
		return raw
	}
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return json.RawMessage("{}")
	}
	short, err := json.Marshal(cutStrings(v))
	if err != nil || len(short) > maxInput {
		return json.RawMessage(fmt.Sprintf(`{"left_out":"%d bytes"}`, len(raw)))
	}
	return short
}

func cutStrings(v any) any {
	switch v := v.(type) {
	case string:
		return cut(v, maxString)
	case []any:
		for i := range v {
			v[i] = cutStrings(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = cutStrings(v[k])
		}
	}
	return v
}

// Summary returns the conversation as a text to put before the first prompt. It is for agents that
// cannot load the conversation as a transcript.
func (c Conversation) Summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, prefaceStart+"agent=%q>\n", c.Agent)
	b.WriteString("You continue a conversation that another agent has led with the user. Its work is in the workspace. What was said and done:\n")
	for _, it := range c.within(maxSummary).Items {
		switch it.Kind {
		case User:
			b.WriteString("\nUser: " + it.Text + "\n")
		case Agent:
			b.WriteString("\nAgent: " + it.Text + "\n")
		case Tool:
			b.WriteString("\nTool call " + it.Call.Name + " " + string(it.Call.Input) + "\nResult: " + it.Call.Output + "\n")
		}
	}
	// The text must not contain the end marker.
	return strings.ReplaceAll(b.String(), strings.TrimSpace(prefaceEnd), "") + prefaceEnd
}
