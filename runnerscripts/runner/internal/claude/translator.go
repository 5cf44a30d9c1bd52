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

// translator makes events of messages. The live conversation and the one read
// back from a transcript go through the same code, so that both tell the same.
// It must not be used from several goroutines at once.
type translator struct {
	out   agent.Sink
	paths primitives.Paths

	// drafts are the messages that are being made, by conversation.
	drafts map[string]*draft
	// tools are the calls without a result yet, by id.
	tools map[string]openCall
	// callers are the conversations of the calls that may start subagents.
	callers map[string]string
	// subagents that have started and not ended, by the call that started them.
	subagents map[string]runnerscripts.SubagentStarted
	// window is the size of the model's context, once it is known.
	window int64
	// used is the context's last known use.
	used int64
}

// openCall is a tool call without a result yet.
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

// conversationID is the conversation that a line belongs to.
func conversationID(parentToolUseID string) string {
	if parentToolUseID == "" {
		return runnerscripts.MainConversation
	}
	return parentToolUseID
}

// conversationOf is the conversation of a tool call without a result yet.
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

// assistant translates the finished blocks of a message of the model. index is
// the first one's number in the message, or negative if the line does not say it.
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

// blockID is the id of a block, unique in the session.
func blockID(messageID string, index int) string {
	return fmt.Sprintf("%s-%d", messageID, index)
}

// whole reports a finished block as far as its pieces have not done so.
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
	t.emit(at, conv, runnerscripts.TypeToolCallUpdate, update)
	if isSubagentTool(call.name) {
		t.subagentResult(at, result, report)
	}
}

// plainContent is content as it is on the wire: one text is a string.
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

// userText reports words of the user.
func (t *translator) userText(at time.Time, conv, uuid string, c content) {
	for i, b := range c {
		if chunk, ok := contentOf(b); ok {
			t.emit(at, conv, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
				BlockID: blockID(uuid, i), Content: chunk,
			})
		}
	}
}

// contextUse reports how full the model's context is after a message.
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

// draft is a message that is being made: the program reports its blocks in
// pieces, then each finished block on a line of its own.
type draft struct {
	messageID string
	next      int      // the number of the block after the last one known
	pieces    []*piece // started and not finished, oldest first
}

// piece is a block that is being made.
type piece struct {
	index int
	typ   string
	text  strings.Builder // said so far
}

// draft returns the conversation's draft of a message; a new message replaces
// the last one.
func (t *translator) draft(conv, messageID string) *draft {
	d := t.drafts[conv]
	if d == nil || d.messageID != messageID {
		t.takeBack(conv)
		d = &draft{messageID: messageID}
		t.drafts[conv] = d
	}
	return d
}

// takeBack empties the blocks of the last message that came to nothing, because
// its request was interrupted or is tried again: the agent does not remember
// them.
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

// begin notes a block that starts.
func (d *draft) begin(index int, typ string) {
	d.pieces = append(d.pieces, &piece{index: index, typ: typ})
	d.next = index + 1
}

// at returns the started block with that number.
func (d *draft) at(index int) *piece {
	for _, p := range d.pieces {
		if p.index == index {
			return p
		}
	}
	return &piece{index: index}
}

// finish takes the block that a finished one is: the one of its type that has
// started and said the same, else the oldest of its type, else the one with the
// given number, else the next. Those that never finish are taken back.
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
