package runner

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/internal/coordapi"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// maxText is how many bytes of a text, or of the input or the output of a tool, are sent. JSON may need six bytes for one, and a
// coordinator takes 4 MiB.
const maxText = 200 << 10

// maxData is how many bytes of a result are sent.
const maxData = 1 << 20

// teller turns the events of a query into those of a coordinator. Equal events give equal IDs, so that they may be sent again.
type teller struct {
	run   coordapi.Run
	asked string // the prompt
	block string // the block of text
	text  strings.Builder
	last  string // the last whole text of the agent
	tools map[string]*runnerscripts.ToolCall
	seq   uint64
	n     int // of the events with the same seq
	time  time.Time
}

func newTeller(r coordapi.Run, prompt string) *teller {
	return &teller{run: r, asked: prompt, tools: make(map[string]*runnerscripts.ToolCall)}
}

// hear returns what an event means to the coordinator.
func (t *teller) hear(ev runnerscripts.Event) (out []coordapi.Event) {
	t.seq, t.n, t.time = ev.Seq, 0, ev.Time
	if ev.ConversationID != "" && ev.ConversationID != runnerscripts.MainConversation {
		return nil // of a subagent, which its tool call sums up
	}
	switch v := ev.Value().(type) {
	case *runnerscripts.ContentChunk:
		if ev.Type == runnerscripts.TypeAgentMessage {
			return t.chunk(*v)
		}
	case *runnerscripts.ToolCall:
		return t.tool(*v)
	case *runnerscripts.QueryStarted:
		if ev.Type == runnerscripts.TypeQueryStarted {
			return t.message("user", t.asked)
		}
	}
	if ev.Type.EndsQuery() {
		out = t.flush()
		switch end := ev.Value().(type) {
		case *runnerscripts.QueryCompleted:
			out = append(out, t.result(end.ResultData))
		case *runnerscripts.QueryFailed:
			var data json.RawMessage
			if end.Detail != nil {
				data = end.Detail.ResultData
			}
			if t.last != "" || len(data) > 0 {
				out = append(out, t.result(data))
			}
		}
	}
	return out
}

// result returns what the agent said last, with its result.
func (t *teller) result(data json.RawMessage) coordapi.Event {
	ev := t.event(coordapi.EventResult)
	ev.ResultText, ev.ResultData = cut(t.last), limited(data, maxData)
	return ev
}

// event returns an event of the current time.
func (t *teller) event(kind string) coordapi.Event {
	t.n++
	return coordapi.Event{Type: kind, SessionID: t.run.SessionID, Timestamp: t.time, ID: fmt.Sprintf("%s/%d/%d", t.run.ID, t.seq, t.n)}
}

func (t *teller) message(role, text string) []coordapi.Event {
	ev := t.event(coordapi.EventMessage)
	ev.Role, ev.Content = role, []coordapi.Text{{Type: "text", Text: cut(text)}}
	return []coordapi.Event{ev}
}

// chunk collects the text of a block.
func (t *teller) chunk(c runnerscripts.ContentChunk) (out []coordapi.Event) {
	if c.BlockID != t.block {
		out = t.flush()
		t.block = c.BlockID
	}
	if c.Snapshot {
		t.text.Reset()
	}
	if t.text.Len() <= maxText {
		t.text.WriteString(c.Content.Text)
	}
	return out
}

// flush returns the text so far as a message.
func (t *teller) flush() []coordapi.Event {
	text := t.text.String()
	t.text.Reset()
	if t.block = ""; text == "" {
		return nil
	}
	t.last = text
	return t.message("assistant", text)
}

// tool returns a tool call that has ended.
func (t *teller) tool(u runnerscripts.ToolCall) []coordapi.Event {
	out := t.flush()
	c := t.tools[u.ToolCallID]
	if c == nil {
		c = &runnerscripts.ToolCall{}
		t.tools[u.ToolCallID] = c
	}
	c.Update(u)
	if c.Status != runnerscripts.ToolCompleted && c.Status != runnerscripts.ToolFailed {
		return out
	}
	delete(t.tools, u.ToolCallID)
	ev := t.event(coordapi.EventPostTool)
	ev.ToolName, ev.ToolInput, ev.ToolOutput = c.Name, limited(c.RawInput, maxText), limited(c.RawOutput, maxText)
	if ev.ToolName == "" {
		ev.ToolName = c.Title
	}
	var text strings.Builder
	for _, part := range c.Content {
		if part.Content != nil {
			text.WriteString(part.Content.Text)
		}
	}
	if text.Len() > 0 {
		ev.ToolOutput, _ = json.Marshal(cut(text.String())) // a text has JSON
	}
	if c.Status == runnerscripts.ToolFailed {
		ev.Error = cut(text.String())
		if ev.Error == "" {
			ev.Error = "the tool failed"
		}
	}
	return append(out, ev)
}

// cut shortens a text to maxText.
func cut(text string) string { return coordapi.Cut(text, maxText) }

// limited returns JSON that is not too large: what is larger becomes a text with its beginning.
func limited(data json.RawMessage, size int) json.RawMessage {
	if len(data) <= size {
		return data
	}
	out, _ := json.Marshal(coordapi.Cut(string(data), size)) // a text has JSON
	return out
}
