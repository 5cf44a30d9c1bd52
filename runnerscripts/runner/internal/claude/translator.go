package claude

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// translator converts messages to events. The live conversation and the transcript use the same
// code, so that both give the same events. It is not safe for concurrent use.
type translator struct {
	out   agent.Sink
	paths primitives.Paths

	// drafts are the unfinished messages, by conversation.
	drafts map[string]*draft
	// tools are the calls without a result, by ID.
	tools map[string]openCall
	// callers are the conversations of the calls that may start subagents.
	callers map[string]string
	// subagents are the running subagents, by the call that started them.
	subagents map[string]runnerscripts.SubagentStarted
	// window is the size of the model's context; zero if unknown.
	window int64
	// used is the last known use of the context.
	used int64
}

// openCall is a tool call without a result.
type openCall struct{ conv, name string }

func newTranslator(out agent.Sink, paths primitives.Paths) *translator {
	return &translator{
		out: out, paths: paths,
		drafts:    map[string]*draft{},
		tools:     map[string]openCall{},
		callers:   map[string]string{},
		subagents: map[string]runnerscripts.SubagentStarted{},
	}
}

// conversationID returns the conversation of a line.
func conversationID(parentToolUseID string) string {
	if parentToolUseID == "" {
		return runnerscripts.MainConversation
	}
	return parentToolUseID
}

// conversationOf returns the conversation of a tool call without a result.
func (t *translator) conversationOf(toolCallID string) string {
	if call, ok := t.tools[toolCallID]; ok {
		return call.conv
	}
	return runnerscripts.MainConversation
}

// emit reports an event; a zero time means now.
func (t *translator) emit(at time.Time, conv string, typ runnerscripts.EventType, payload any) {
	if at.IsZero() {
		t.out.Emit(conv, typ, payload)
		return
	}
	t.out.EmitAt(at, conv, typ, payload)
}

// assistant translates the finished blocks of a model message. index is the number of the first
// block in the message, or negative if the line does not say it.
func (t *translator) assistant(at time.Time, conv string, m message, index int) {
	d := t.draft(conv, m.ID)
	for _, b := range m.Content {
		p := d.finish(b.Type, b.Text+b.Thinking, index)
		if index >= 0 {
			index++
		}
		id := blockID(m.ID, p.index)
		switch b.Type {
		case blockText:
			t.whole(at, conv, runnerscripts.TypeAgentMessage, id, p.text.String(), b.Text)
		case blockThinking:
			t.whole(at, conv, runnerscripts.TypeAgentThought, id, p.text.String(), b.Thinking)
		case blockToolUse:
			t.toolUse(at, conv, b)
		}
	}
}

// blockID returns an ID for a block that is unique in the session.
func blockID(messageID string, index int) string {
	return fmt.Sprintf("%s-%d", messageID, index)
}

// whole reports the part of a finished block that its pieces have not reported.
func (t *translator) whole(at time.Time, conv string, typ runnerscripts.EventType, id, said, text string) {
	if said == text {
		return
	}
	t.emit(at, conv, typ, runnerscripts.ContentChunk{
		BlockID: id, Content: runnerscripts.Content{Type: "text", Text: text}, Snapshot: said != "",
	})
}

func (t *translator) toolUse(at time.Time, conv string, b block) {
	t.tools[b.ID] = openCall{conv: conv, name: b.Name}
	if isSubagentTool(b.Name) {
		t.callers[b.ID] = conv
	}
	call := t.toolCall(b.ID, b.Name, b.Input)
	call.Status = runnerscripts.ToolInProgress
	t.emit(at, conv, runnerscripts.TypeToolCall, call)
	if p, ok := plan(b.Name, b.Input); ok {
		t.emit(at, conv, runnerscripts.TypePlan, p)
	}
}

// toolResult translates the end of a tool call.
func (t *translator) toolResult(at time.Time, conv string, result block, report []byte) {
	update := runnerscripts.ToolCall{
		ToolCallID: result.ToolUseID,
		Status:     runnerscripts.ToolCompleted,
		Content:    t.resultContent(result, report),
		RawOutput:  report,
	}
	if result.IsError {
		update.Status = runnerscripts.ToolFailed
	}
	if len(report) == 0 {
		update.RawOutput = plainContent(result.Content)
	}
	call := t.tools[result.ToolUseID]
	delete(t.tools, result.ToolUseID)
	if result.IsError && call.name == "Bash" {
		exitCode(&update)
	}
	t.emit(at, conv, runnerscripts.TypeToolCallUpdate, update)
	if isSubagentTool(call.name) {
		t.subagentResult(at, result, report)
	}
}

// plainContent returns content in its JSON form: a single text is a string.
func plainContent(c content) json.RawMessage {
	var v any = c
	if len(c) == 1 && c[0].Type == blockText {
		v = c[0].Text
	}
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("blocks that were JSON are none: %v", err)) // cannot happen: they came from JSON
	}
	return data
}

// userText reports a user message.
func (t *translator) userText(at time.Time, conv, uuid string, c content) {
	for i, b := range c {
		if chunk, ok := contentOf(b); ok {
			chunk.Data = "" // the session has it
			t.emit(at, conv, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
				BlockID: blockID(uuid, i), Content: chunk,
			})
		}
	}
}

// contextUse reports the use of the model's context after a message.
func (t *translator) contextUse(at time.Time, u *usage) {
	if u == nil {
		return
	}
	used := u.InputTokens + u.CacheReadTokens + u.CacheWriteTokens + u.OutputTokens
	if used == 0 || used == t.used {
		return
	}
	t.used = used
	t.emit(at, runnerscripts.MainConversation, runnerscripts.TypeUsageUpdate,
		runnerscripts.UsageUpdate{Used: used, Size: t.window})
}

// draft is an unfinished message: the program reports its blocks in pieces, then each finished
// block on a separate line.
type draft struct {
	messageID string
	next      int      // number after the last known block
	pieces    []*piece // unfinished, oldest first
}

// piece is an unfinished block.
type piece struct {
	index int
	typ   string
	text  strings.Builder // text reported by the pieces
}

// draft returns the conversation's draft of a message, and replaces the draft of an earlier
// message.
func (t *translator) draft(conv, messageID string) *draft {
	d := t.drafts[conv]
	if d == nil || d.messageID != messageID {
		t.takeBack(conv)
		d = &draft{messageID: messageID}
		t.drafts[conv] = d
	}
	return d
}

// takeBack empties the blocks of the last message after its request was interrupted or is
// retried: the agent does not remember them.
func (t *translator) takeBack(conv string) {
	d := t.drafts[conv]
	if d == nil {
		return
	}
	for _, p := range d.pieces {
		if p.text.Len() == 0 {
			continue
		}
		typ := runnerscripts.TypeAgentMessage
		if p.typ == blockThinking {
			typ = runnerscripts.TypeAgentThought
		}
		t.emit(time.Time{}, conv, typ, runnerscripts.ContentChunk{
			BlockID: blockID(d.messageID, p.index), Content: runnerscripts.Content{Type: "text"}, Snapshot: true,
		})
	}
	d.pieces = nil
}

// begin records the start of a block.
func (d *draft) begin(index int, typ string) {
	d.pieces = append(d.pieces, &piece{index: index, typ: typ})
	d.next = index + 1
}

// at returns the unfinished block with this number.
func (d *draft) at(index int) *piece {
	for _, p := range d.pieces {
		if p.index == index {
			return p
		}
	}
	return &piece{index: index}
}

// finish returns the piece for a finished block: the started piece of its type with the same text,
// else the oldest of its type, which it removes; else a new piece with the given number, or the
// next number if that is negative. Pieces that never finish are withdrawn.
func (d *draft) finish(typ, said string, index int) *piece {
	found := -1
	for i, p := range d.pieces {
		if p.typ != typ {
			continue
		}
		if found < 0 {
			found = i
		}
		if p.text.String() == said {
			found = i
			break
		}
	}
	if found >= 0 {
		p := d.pieces[found]
		d.pieces = slices.Delete(d.pieces, found, found+1)
		return p
	}
	if index < 0 {
		index = d.next
	}
	d.next = index + 1
	return &piece{index: index, typ: typ}
}
