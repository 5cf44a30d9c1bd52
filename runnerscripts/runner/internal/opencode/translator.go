package opencode

import (
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// translator translates the program's messages to events. The live conversation and the history use
// the same code, and the translator reports everything once, so both yield the same events. It is
// not safe for concurrent use.
type translator struct {
	out       agent.Sink
	workspace string
	// replaying means that the messages are history: the translator also reports the user's
	// messages, and each event has its recorded time.
	replaying bool
	// stored holds the messages of subagents in a replay, by session.
	stored map[string][]message

	// whole is set while message translates a complete message: its parts are final.
	whole bool
	// infos holds the known messages without their parts, by id.
	infos map[string]messageInfo
	// prompts holds the user messages that the translator also reports live, by id: the program
	// creates the text of a slash command's message.
	prompts map[string]bool
	// parts holds what was reported of each part, by id.
	parts map[string]*told
	// calls holds the tool calls that have not ended, by the model's id of the call.
	calls map[string]part
	// conversations holds the conversation of each of the program's sessions, by the session's id:
	// a subagent has a session of its own.
	conversations map[string]string
	// subagents holds the sessions of the started subagents, by the part id of the tool call.
	subagents map[string]string
	// windows holds the sizes of the models' context windows, by provider/model.
	windows map[string]int64
	// spent is the usage of the requests to the model since the last reset.
	spent runnerscripts.Usage
}

// told is what was reported of a part.
type told struct {
	conv    string
	typ     runnerscripts.EventType // of a text part
	text    strings.Builder         // the deltas that were reported
	shown   bool                    // some text was reported
	started bool                    // the start of a tool call was reported
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

// emit reports an event. It uses the time only in a replay.
func (t *translator) emit(when time.Time, conv string, typ runnerscripts.EventType, payload any) {
	if !t.replaying || when.IsZero() {
		t.out.Emit(conv, typ, payload)
		return
	}
	t.out.EmitAt(when, conv, typ, payload)
}

// message translates the parts of a complete message that were not reported yet.
func (t *translator) message(m message) {
	t.infos[m.Info.ID] = m.Info
	outer := t.whole // startSubagent calls message recursively
	t.whole = true
	for _, p := range m.Parts {
		t.part(p)
	}
	t.whole = outer
}

// conversationOf returns the conversation of a session of the program. An unknown session belongs
// to the main conversation.
func (t *translator) conversationOf(sessionID string) string {
	if conv, ok := t.conversations[sessionID]; ok {
		return conv
	}
	return runnerscripts.MainConversation
}

// part translates the current state of a part of a message.
func (t *translator) part(p part) {
	conv, known := t.conversations[p.SessionID]
	info, told := t.infos[p.MessageID]
	if !known || !told {
		return // catchUp reports it at the end of the query
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

// userPart reports a part of a user message, in a replay or if the program created the text. It
// ignores subagents: startSubagent reports their prompts.
func (t *translator) userPart(conv string, info messageInfo, p part) {
	if !t.replaying && !t.prompts[info.ID] || conv != runnerscripts.MainConversation || p.Synthetic || p.Ignored {
		return
	}
	var c runnerscripts.Content
	ok := false
	switch p.Type {
	case partFile:
		c, ok = attached(p)
	case partText:
		c, ok = runnerscripts.Content{Type: "text", Text: p.Text}, p.Text != ""
	case partSubtask:
		c, ok = runnerscripts.Content{Type: "text", Text: p.Prompt}, p.Prompt != ""
	}
	if ok && t.once(conv, p.ID) {
		t.emit(at(info.Time.Created), conv, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{BlockID: p.ID, Content: c})
	}
}

// once reports whether a part is new, and marks it as reported.
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

// text reports the complete text of a part, unless the deltas have reported the same text. It only
// registers an incomplete part, whose deltas follow.
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

// delta reports new text of a part.
func (t *translator) delta(d partDelta) {
	k := t.parts[d.PartID]
	if k == nil || k.over || k.typ == "" || d.Field != "text" || d.Delta == "" {
		return // text reports it at the end of the part
	}
	k.text.WriteString(d.Delta)
	k.shown = true
	t.emit(time.Time{}, k.conv, k.typ, runnerscripts.ContentChunk{
		BlockID: d.PartID, Content: runnerscripts.Content{Type: "text", Text: d.Delta},
	})
}

// remove replaces the reported text of a removed part with an empty snapshot.
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

// tool translates the current state of a tool call. It does not report a pending call, whose input
// is incomplete.
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

// step adds the usage of one request to the model, and reports the context size of the main
// conversation.
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
