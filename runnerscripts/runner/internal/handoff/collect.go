package handoff

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Collector is a sink that builds a conversation from its events. Its methods may be called
// from any goroutine. The zero value is ready to use.
type Collector struct {
	mu    sync.Mutex
	parts []*part
	index map[string]*part
	// outputs are the last messages of subagents, by the call that started them.
	outputs map[string]string
}

// part is an unfinished item.
type part struct {
	kind Kind
	time time.Time
	text strings.Builder
	call runnerscripts.ToolCall
}

// Emit adds an event with the current time.
func (c *Collector) Emit(conv string, typ runnerscripts.EventType, payload any) {
	c.EmitAt(time.Now(), conv, typ, payload)
}

// EmitAt adds an event with the time at.
func (c *Collector) EmitAt(at time.Time, conv string, typ runnerscripts.EventType, payload any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if typ == runnerscripts.TypeSubagentCompleted {
		if p, ok := decode[runnerscripts.SubagentCompleted](payload); ok && p.Output != "" {
			if c.outputs == nil {
				c.outputs = map[string]string{}
			}
			c.outputs[p.ToolCallID] = p.Output
		}
		return
	}
	if conv != "" && conv != runnerscripts.MainConversation {
		return
	}
	switch typ {
	case runnerscripts.TypeUserMessage:
		c.words(at, User, payload)
	case runnerscripts.TypeAgentMessage:
		c.words(at, Agent, payload)
	case runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate:
		if p, ok := decode[runnerscripts.ToolCall](payload); ok {
			c.part(at, Tool, p.ToolCallID).call.Update(p)
		}
	}
}

func (c *Collector) words(at time.Time, kind Kind, payload any) {
	p, ok := decode[runnerscripts.ContentChunk](payload)
	if !ok {
		return
	}
	it := c.part(at, kind, p.BlockID)
	if p.Snapshot {
		it.text.Reset()
	}
	it.text.WriteString(p.Content.Text)
}

// part returns the item that an event extends. Without an ID, only consecutive events belong to the
// same item.
func (c *Collector) part(at time.Time, kind Kind, id string) *part {
	key := string(rune('0'+kind)) + id
	if p := c.index[key]; p != nil && id != "" {
		return p
	}
	if n := len(c.parts); id == "" && n > 0 && c.parts[n-1] == c.index[key] {
		return c.parts[n-1]
	}
	p := &part{kind: kind, time: at}
	c.parts = append(c.parts, p)
	if c.index == nil {
		c.index = map[string]*part{}
	}
	c.index[key] = p
	return p
}

// Conversation returns the events so far as a conversation of the named agent. It omits items
// before the first user message.
func (c *Collector) Conversation(agent string) Conversation {
	c.mu.Lock()
	defer c.mu.Unlock()
	conv := Conversation{Agent: agent}
	last := time.Now()
	for _, p := range c.parts {
		// Some agents cannot write other years.
		if year := p.time.UTC().Year(); year >= 1970 && year <= 9998 {
			last = p.time
		}
		it := Item{Kind: p.kind, Time: last}
		if p.kind == Tool {
			it.Call = c.call(p.call)
		} else if it.Text = strings.ToValidUTF8(p.text.String(), "\uFFFD"); strings.TrimSpace(it.Text) == "" {
			continue
		}
		if len(conv.Items) == 0 && it.Kind != User {
			continue
		}
		conv.Items = append(conv.Items, it)
	}
	return conv
}

func (c *Collector) call(call runnerscripts.ToolCall) *Call {
	out := &Call{
		Name: nameOf(call), Title: call.Title, Kind: call.Kind, Input: inputOf(call.RawInput),
		Output: outputOf(call), Failed: call.Status != runnerscripts.ToolCompleted,
	}
	if said, ok := c.outputs[call.ToolCallID]; ok && len(call.Content) == 0 {
		out.Output = said
	}
	out.Output = strings.ToValidUTF8(out.Output, "\uFFFD")
	return out
}

// decode converts a payload to a T: drivers emit structs, recorded payloads are JSON.
func decode[T any](payload any) (T, bool) {
	if v, ok := payload.(T); ok {
		return v, true
	}
	var v T
	raw, ok := payload.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = json.Marshal(payload); err != nil {
			return v, false
		}
	}
	return v, json.Unmarshal(raw, &v) == nil
}
