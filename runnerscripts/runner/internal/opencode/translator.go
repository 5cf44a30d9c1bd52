package opencode

import (
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// translator makes events of messages. The live conversation and the history
// go through the same code, and the translator reports everything once,
// so that both yield the same events. It is not safe for concurrent use.
type translator struct {
	out       agent.Sink
	workspace string
	// replaying says that the messages are history: the translator reports the user's
	// too, and each event has its recorded time.
	replaying bool
	// stored are the messages of subagents that are read back, by session.
	stored map[string][]message

	// whole says that the parts are those of a message that is read back.
	whole bool
	// infos are what is known of the messages, by id.
	infos map[string]messageInfo
	// prompts are the live messages of the user that the translator reports as the
	// program has them, by id.
	prompts map[string]bool
	// parts are the reported parts, complete or not, by id.
	parts map[string]*told
	// calls are the tool calls that have not ended, by the id that the model gave
	// them.
	calls map[string]part
	// conversations are those of the program's sessions, by id: a subagent has
	// a session of its own.
	conversations map[string]string
	// subagents that have started, by the call that did it.
	subagents map[string]string
	// windows are the sizes of the models' contexts, by provider/model.
	windows map[string]int64
	// spent is what the requests to the model have cost since it was reset.
	spent runnerscripts.Usage
}

// told is the part of a message part that was reported.
type told struct {
	conv    string
	typ     runnerscripts.EventType // of a text
	text    strings.Builder         // what its pieces have said so far
	shown   bool                    // some text of it was reported
	started bool                    // of a tool call
	over    bool
}

func newTranslator(out agent.Sink, workspace string) *translator {
	return &translator{
		out: out, workspace: workspace,
		infos:         map[string]messageInfo{},
		prompts:       map[string]bool{},
		parts:         map[string]*told{},
		calls:         map[string]part{},
		conversations: map[string]string{},
		subagents:     map[string]string{},
		windows:       map[string]int64{},
	}
}

// emit reports an event; the time counts only if messages are read back.
func (t *translator) emit(when time.Time, conv string, typ runnerscripts.EventType, payload any) {
	if !t.replaying || when.IsZero() {
		t.out.Emit(conv, typ, payload)
		return
	}
	t.out.EmitAt(when, conv, typ, payload)
}

// message translates the unreported rest of a message.
func (t *translator) message(m message) {
	t.infos[m.Info.ID] = m.Info
	outer := t.whole // a subagent's message comes amid another
	t.whole = true
	for _, p := range m.Parts {
		t.part(p)
	}
	t.whole = outer
}

// conversationOf is the conversation of a session of the program.
func (t *translator) conversationOf(sessionID string) string {
	if conv, ok := t.conversations[sessionID]; ok {
		return conv
	}
	return runnerscripts.MainConversation
}

// part translates a part of a message as it is now.
func (t *translator) part(p part) {
	conv, known := t.conversations[p.SessionID]
	info, told := t.infos[p.MessageID]
	if !known || !told {
		return // until the end of the query
	}
	if info.Role == roleUser {
		t.userPart(conv, info, p)
		return
	}
	switch p.Type {
	case partText:
		t.text(conv, runnerscripts.TypeAgentMessage, p)
	case partReasoning:
		t.text(conv, runnerscripts.TypeAgentThought, p)
	case partTool:
		t.tool(conv, p)
	case partFile:
		if c, ok := fileContent(p); ok && t.once(conv, p.ID) {
			t.emit(at(info.Time.Created), conv, runnerscripts.TypeAgentMessage, runnerscripts.ContentChunk{BlockID: p.ID, Content: c})
		}
	case partStepFinish:
		if t.once(conv, p.ID) {
			t.step(conv, info, p)
		}
	}
}

// userPart reports what the user said, in a history or if only the program
// knows it. The start of a subagent reports the subagent's prompt.
func (t *translator) userPart(conv string, info messageInfo, p part) {
	if !t.replaying && !t.prompts[info.ID] || conv != runnerscripts.MainConversation || p.Synthetic || p.Ignored {
		return
	}
	c, ok := fileContent(p)
	switch p.Type {
	case partText:
		c, ok = runnerscripts.Content{Type: "text", Text: p.Text}, p.Text != ""
	case partSubtask:
		c, ok = runnerscripts.Content{Type: "text", Text: p.Prompt}, p.Prompt != ""
	}
	if ok && t.once(conv, p.ID) {
		t.emit(at(info.Time.Created), conv, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{BlockID: p.ID, Content: c})
	}
}

// once reports whether a part is new, and notes it as reported.
func (t *translator) once(conv, id string) bool {
	p := t.known(conv, id)
	if p.over {
		return false
	}
	p.over = true
	return true
}

func (t *translator) known(conv, id string) *told {
	p := t.parts[id]
	if p == nil {
		p = &told{conv: conv}
		t.parts[id] = p
	}
	return p
}

// text reports the rest of a block that its pieces have not reported. It only registers an
// incomplete block, whose pieces follow.
func (t *translator) text(conv string, typ runnerscripts.EventType, p part) {
	k := t.known(conv, p.ID)
	k.typ = typ
	if k.over || p.Time.End == 0 && !t.whole {
		return
	}
	said := k.text.String()
	k.over, k.shown = true, p.Text != ""
	k.text.Reset()
	if said == p.Text {
		return
	}
	t.emit(at(p.Time.Start), conv, typ, runnerscripts.ContentChunk{
		BlockID: p.ID, Content: runnerscripts.Content{Type: "text", Text: p.Text}, Snapshot: said != "",
	})
}

// delta tells what is new in a block.
func (t *translator) delta(d partDelta) {
	k := t.parts[d.PartID]
	if k == nil || k.over || k.typ == "" || d.Field != "text" || d.Delta == "" {
		return // the end of the block reports the text
	}
	k.text.WriteString(d.Delta)
	k.shown = true
	t.emit(time.Time{}, k.conv, k.typ, runnerscripts.ContentChunk{
		BlockID: d.PartID, Content: runnerscripts.Content{Type: "text", Text: d.Delta},
	})
}

// remove withdraws a block that the program has removed.
func (t *translator) remove(id string) {
	k := t.parts[id]
	if k == nil || !k.shown {
		return
	}
	k.over, k.shown = true, false
	k.text.Reset()
	t.emit(time.Time{}, k.conv, k.typ, runnerscripts.ContentChunk{
		BlockID: id, Content: runnerscripts.Content{Type: "text"}, Snapshot: true,
	})
}

// tool translates the current state of a tool call. A call whose input is incomplete shows no
// input.
func (t *translator) tool(conv string, p part) {
	k := t.known(conv, p.ID)
	over := p.State.Status == toolCompleted || p.State.Status == toolError
	if over || k.over {
		delete(t.calls, p.CallID)
	} else {
		t.calls[p.CallID] = p
	}
	if k.over || !over && p.State.Status != toolRunning {
		return
	}
	if !k.started {
		k.started = true
		call := t.toolCall(p)
		call.Status = runnerscripts.ToolInProgress
		t.emit(at(p.State.Time.Start), conv, runnerscripts.TypeToolCall, call)
		if list, ok := plan(p); ok {
			t.emit(at(p.State.Time.Start), conv, runnerscripts.TypePlan, list)
		}
	}
	if p.Tool == toolTask {
		t.startSubagent(conv, p)
	}
	if !over {
		return
	}
	k.over = true
	t.emit(at(p.State.Time.End), conv, runnerscripts.TypeToolCallUpdate, t.toolResult(p))
	if p.Tool == toolTask {
		t.endSubagent(conv, p)
	}
}

// step counts what one request to the model cost.
func (t *translator) step(conv string, info messageInfo, p part) {
	if p.Tokens == nil {
		return
	}
	u := runnerscripts.Usage{
		InputTokens: p.Tokens.Input, OutputTokens: p.Tokens.Output + p.Tokens.Reasoning,
		CacheReadTokens: p.Tokens.Cache.Read, CacheWriteTokens: p.Tokens.Cache.Write, CostUSD: p.Cost,
	}
	t.spent = t.spent.Add(u)
	if conv != runnerscripts.MainConversation {
		return
	}
	t.emit(at(info.Time.Completed), conv, runnerscripts.TypeUsageUpdate, runnerscripts.UsageUpdate{
		Used: u.InputTokens + u.OutputTokens + u.CacheReadTokens + u.CacheWriteTokens,
		Size: t.windows[info.ProviderID+"/"+info.ModelID],
	})
}
