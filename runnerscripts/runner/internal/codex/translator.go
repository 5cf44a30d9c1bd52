package codex

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
)

// translator converts items to events. The live conversation and the rollout use the same code,
// so that both give the same events. It is not safe for concurrent use.
type translator struct {
	out agent.Sink

	blocks []*piece // unfinished, oldest first
	calls  []openCall
	begun  map[string]bool // reported tool calls, by ID
	failed map[string]bool // calls ended by the end of an interrupted turn
	// agents are the subagents, by their thread.
	agents map[string]subagent
	linked bool              // a subagent has been added
	said   map[string]string // the agent's last message, by conversation
	used   int64             // the context's last known use
}

// subagent is a thread that a tool call has started.
type subagent struct{ parent, call string }

// piece is an unfinished block.
type piece struct {
	conv, id string
	typ      runnerscripts.EventType
	text     strings.Builder // received so far
}

// openCall is a tool call without an end.
type openCall struct {
	conv string
	call runnerscripts.ToolCall
}

func newTranslator(out agent.Sink) *translator {
	return &translator{
		out: out, begun: map[string]bool{}, failed: map[string]bool{},
		agents: map[string]subagent{}, said: map[string]string{},
	}
}

// conversationOf returns the conversation of a thread other than the main one.
func (t *translator) conversationOf(thread string) string {
	if a, ok := t.agents[thread]; ok {
		return a.call
	}
	return thread
}

// knows reports whether a thread belongs to a known subagent.
func (t *translator) knows(thread string) bool {
	_, ok := t.agents[thread]
	return ok
}

// emit reports an event; a zero time means now.
func (t *translator) emit(at time.Time, conv string, typ runnerscripts.EventType, payload any) {
	if at.IsZero() {
		t.out.Emit(conv, typ, payload)
		return
	}
	t.out.EmitAt(at, conv, typ, payload)
}

// started translates the start of an item.
func (t *translator) started(conv string, n itemNote) {
	if isMessage(n.Item.Type) || n.Item.ID == "" {
		return // messages arrive in pieces; an item without an ID is ambiguous
	}
	t.startCall(time.Time{}, conv, n.Item)
}

// completed translates a finished item.
func (t *translator) completed(conv string, n itemNote) {
	t.finish(time.Time{}, time.Time{}, conv, n.Item)
}

// isMessage reports whether an item is a message instead of a tool call.
func isMessage(typ string) bool {
	return typ == itemUser || typ == itemHook || typ == itemAgent || typ == itemReasoning || typ == itemPlan
}

// finish translates a finished item. began and ended are its times; zero means now.
func (t *translator) finish(began, ended time.Time, conv string, i item) {
	if i.ID == "" {
		return // the item cannot be distinguished from others
	}
	switch i.Type {
	case itemUser:
		t.user(ended, conv, i)
	case itemHook:
		for n, f := range i.Fragments {
			t.emit(ended, conv, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
				BlockID: fmt.Sprintf("%s-%d", i.ID, n), Content: runnerscripts.Content{Type: "text", Text: f.Text},
			})
		}
	case itemAgent, itemPlan:
		t.said[conv] = i.Text
		t.whole(ended, conv, runnerscripts.TypeAgentMessage, i.ID, i.Text)
	case itemReasoning:
		t.reasoning(ended, conv, i)
	default:
		if !t.begun[i.ID] {
			t.startCall(began, conv, i)
		}
		t.endCall(ended, conv, i)
		t.startSubagents(ended, conv, i)
	}
}

// startSubagents reports the subagents that a tool call has started.
func (t *translator) startSubagents(at time.Time, conv string, i item) {
	if i.Type != itemCollab || i.Tool != toolSpawn {
		return
	}
	for _, thread := range i.ReceiverThreadIDs {
		t.agents[thread], t.linked = subagent{parent: conv, call: i.ID}, true
		t.emit(at, conv, runnerscripts.TypeSubagentStarted, runnerscripts.SubagentStarted{
			ToolCallID: i.ID, AgentID: thread, Prompt: i.Prompt,
		})
	}
}

// endSubagent reports that a subagent has finished its last task.
func (t *translator) endSubagent(at time.Time, thread string, completed bool, durationMS int64) {
	a, ok := t.agents[thread]
	if !ok {
		return
	}
	end := runnerscripts.SubagentCompleted{
		ToolCallID: a.call, AgentID: thread, Status: "failed", Output: t.said[a.call], DurationMS: durationMS,
	}
	if completed {
		end.Status = "completed"
	}
	t.emit(at, a.parent, runnerscripts.TypeSubagentCompleted, end)
}

func (t *translator) user(at time.Time, conv string, i item) {
	var inputs []input
	_ = json.Unmarshal(i.Content, &inputs) // another format, of a newer version, shows nothing
	for n, in := range inputs {
		c := runnerscripts.Content{Type: in.Type, Text: in.Text, URI: in.URL}
		switch in.Type {
		case "text":
		case "localImage":
			c.Type, c.URI = "image", in.Path
		case "image":
			c.URI += in.ImageURL
			if media, ok := agent.DataURLType(c.URI); ok { // the session has the data
				c.URI, c.MimeType = "", media
			}
		default:
			c.Type, c.URI = "resource_link", in.URL+in.Path
		}
		t.emit(at, conv, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
			BlockID: fmt.Sprintf("%s-%d", i.ID, n), Content: c,
		})
	}
}

// reasoning reports the parts of a thought: summaries, or the model's actual thoughts if
// available.
func (t *translator) reasoning(at time.Time, conv string, i item) {
	for n, text := range i.Summary {
		t.whole(at, conv, runnerscripts.TypeAgentThought, summaryID(i.ID, n), text)
	}
	var thoughts []string
	_ = json.Unmarshal(i.Content, &thoughts) // null if there are none
	for n, text := range thoughts {
		t.whole(at, conv, runnerscripts.TypeAgentThought, thoughtID(i.ID, n), text)
	}
}

func summaryID(item string, n int) string { return fmt.Sprintf("%s-s%d", item, n) }
func thoughtID(item string, n int) string { return fmt.Sprintf("%s-t%d", item, n) }

// delta reports the new text of a block.
func (t *translator) delta(conv string, typ runnerscripts.EventType, id, text string) {
	if text == "" || id == "" {
		return
	}
	p := t.piece(conv, id)
	if p == nil {
		p = &piece{conv: conv, id: id, typ: typ}
		t.blocks = append(t.blocks, p)
	}
	p.text.WriteString(text)
	t.chunk(time.Time{}, conv, typ, id, text, false)
}

func (t *translator) piece(conv, id string) *piece {
	for _, p := range t.blocks {
		if p.conv == conv && p.id == id {
			return p
		}
	}
	return nil
}

// whole reports the text of a finished block, unless its pieces have reported exactly that text.
func (t *translator) whole(at time.Time, conv string, typ runnerscripts.EventType, id, text string) {
	said := ""
	if p := t.piece(conv, id); p != nil {
		said = p.text.String()
		t.blocks = slices.DeleteFunc(t.blocks, func(b *piece) bool { return b == p })
	}
	if said != text {
		t.chunk(at, conv, typ, id, text, said != "")
	}
}

func (t *translator) chunk(at time.Time, conv string, typ runnerscripts.EventType, id, text string, snapshot bool) {
	t.emit(at, conv, typ, runnerscripts.ContentChunk{
		BlockID: id, Content: runnerscripts.Content{Type: "text", Text: text}, Snapshot: snapshot,
	})
}

// endTurn withdraws unfinished blocks, because the agent forgets them, and reports open tool calls
// as failed.
func (t *translator) endTurn(at time.Time, conv string) {
	t.endTurnBut(at, conv, func(runnerscripts.ToolCall) bool { return false })
}

// endTurnBut is like endTurn, but keeps a tool call open if goesOn returns true for it.
func (t *translator) endTurnBut(at time.Time, conv string, goesOn func(runnerscripts.ToolCall) bool) {
	t.blocks = slices.DeleteFunc(t.blocks, func(p *piece) bool {
		if p.conv != conv {
			return false
		}
		t.chunk(at, conv, p.typ, p.id, "", true)
		return true
	})
	t.calls = slices.DeleteFunc(t.calls, func(c openCall) bool {
		if c.conv != conv || goesOn(c.call) {
			return false
		}
		t.failed[c.call.ToolCallID] = true
		t.emit(at, conv, runnerscripts.TypeToolCallUpdate, runnerscripts.ToolCall{
			ToolCallID: c.call.ToolCallID, Status: runnerscripts.ToolFailed,
		})
		return true
	})
}

// endAll ends the turns of all conversations.
func (t *translator) endAll() {
	for len(t.blocks) > 0 {
		t.endTurn(time.Time{}, t.blocks[0].conv)
	}
	for len(t.calls) > 0 {
		t.endTurn(time.Time{}, t.calls[0].conv)
	}
}

// plan reports the agent's plan.
func (t *translator) plan(at time.Time, conv string, steps []planStep) {
	p := runnerscripts.Plan{Entries: make([]runnerscripts.PlanEntry, 0, len(steps))}
	for _, s := range steps {
		status := s.Status
		if status == statusInProgress {
			status = "in_progress"
		}
		p.Entries = append(p.Entries, runnerscripts.PlanEntry{Content: s.Step, Status: status})
	}
	t.emit(at, conv, runnerscripts.TypePlan, p)
}

// contextUse reports how full the model's context is.
func (t *translator) contextUse(at time.Time, used, size int64) {
	if used == 0 || used == t.used {
		return
	}
	t.used = used
	t.emit(at, runnerscripts.MainConversation, runnerscripts.TypeUsageUpdate, runnerscripts.UsageUpdate{Used: used, Size: size})
}
