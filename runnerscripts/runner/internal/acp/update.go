package acp

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/agent"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/record"
)

// translator converts updates to events.
type translator struct {
	out           agent.Sink
	wholeThoughts bool

	mu       sync.Mutex
	prompts  int // number of prompts in the conversation
	promptID string
	blocks   int                     // number of blocks of the prompt
	open     runnerscripts.EventType // kind of the growing block; empty if there is none
	message  string                  // the agent's own id of that block, if it has one
	draft    []draft                 // the blocks since the last tool call
	calls    map[string]knownCall
	cost     float64 // of the session, as the agent last reported it
	spent    float64 // of the running query
}

// knownCall is a reported tool call.
type knownCall struct {
	open bool                   // it has not ended
	call runnerscripts.ToolCall // the fields that the guard needs
}

// draft is an unfinished block of an answer.
type draft struct {
	id  string
	typ runnerscripts.EventType
}

func newTranslator(out agent.Sink, wholeThoughts bool) *translator {
	return &translator{out: out, wholeThoughts: wholeThoughts, calls: map[string]knownCall{}}
}

// resume continues an earlier conversation.
func (t *translator) resume(h History) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prompts, t.cost = max(t.prompts, h.Prompts), max(t.cost, h.Cost)
}

// prompt reports a user message, which starts a query.
func (t *translator) prompt(text string) {
	t.mu.Lock()
	t.prompts++
	t.promptID = record.PromptID(t.prompts, text)
	t.blocks, t.open, t.message, t.draft, t.spent = 1, "", "", nil, 0
	id := record.BlockID(t.promptID, 0)
	t.mu.Unlock()
	t.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
		BlockID: id, Content: runnerscripts.Content{Type: "text", Text: text},
	})
}

// update reports an update of the agent.
func (t *translator) update(u Update) error {
	switch runnerscripts.EventType(u.Kind) {
	case runnerscripts.TypeAgentMessage, runnerscripts.TypeAgentThought:
		return t.chunk(runnerscripts.EventType(u.Kind), u.Raw)
	case runnerscripts.TypeUserMessage:
		return nil // an echo of the prompt
	case runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate:
		var call runnerscripts.ToolCall
		if err := json.Unmarshal(u.Raw, &call); err != nil {
			return err
		}
		t.toolCall(call)
		return nil
	case runnerscripts.TypePlan:
		return pass[runnerscripts.Plan](t, u)
	case runnerscripts.TypeUsageUpdate:
		return t.usage(u)
	}
	// Pass on unknown kinds: the reader of events may know them.
	return pass[map[string]json.RawMessage](t, u)
}

// pass emits an update with its payload decoded as T.
func pass[T any](t *translator, u Update) error {
	var payload T
	if err := json.Unmarshal(u.Raw, &payload); err != nil {
		return err
	}
	if m, ok := any(payload).(map[string]json.RawMessage); ok {
		delete(m, "sessionUpdate")
	}
	t.out.Emit(runnerscripts.MainConversation, runnerscripts.EventType(u.Kind), payload)
	return nil
}

func (t *translator) chunk(typ runnerscripts.EventType, raw json.RawMessage) error {
	var c struct {
		MessageID string                `json:"messageId"`
		Content   runnerscripts.Content `json:"content"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return err
	}
	t.mu.Lock()
	whole := t.wholeThoughts && typ == runnerscripts.TypeAgentThought
	if t.open != typ || t.message != c.MessageID || whole {
		t.draft = append(t.draft, draft{id: record.BlockID(t.promptID, t.blocks), typ: typ})
		t.blocks++
		t.open, t.message = typ, c.MessageID
	}
	id := t.draft[len(t.draft)-1].id
	t.mu.Unlock()
	t.out.Emit(runnerscripts.MainConversation, typ, runnerscripts.ContentChunk{BlockID: id, Content: c.Content})
	return nil
}

// toolCall reports a tool call or its update. The first mention of a call is its start,
// whatever the agent calls it.
func (t *translator) toolCall(call runnerscripts.ToolCall) {
	typ := runnerscripts.TypeToolCallUpdate
	t.mu.Lock()
	t.open, t.draft = "", nil
	known, told := t.calls[call.ToolCallID]
	if !told {
		typ = runnerscripts.TypeToolCall
		if call.Status == "" {
			call.Status = runnerscripts.ToolPending
		}
	}
	if call.Status != "" {
		known.open = call.Status != runnerscripts.ToolCompleted && call.Status != runnerscripts.ToolFailed
	}
	known.call = known.with(call)
	t.calls[call.ToolCallID] = known
	t.mu.Unlock()
	t.out.Emit(runnerscripts.MainConversation, typ, call)
}

// with returns a call merged with an update.
func (k knownCall) with(update runnerscripts.ToolCall) runnerscripts.ToolCall {
	call := k.call
	call.Update(runnerscripts.ToolCall{Title: update.Title, Locations: update.Locations})
	// A permission request may know less of a tool than an earlier update.
	if update.Kind != "" && (call.Kind == "" || update.Kind != runnerscripts.ToolOther) {
		call.Kind = update.Kind
	}
	if update.Content != nil {
		call.Content = nil
	}
	for _, c := range update.Content {
		if c.Type == "diff" {
			call.Content = append(call.Content, runnerscripts.ToolCallContent{Type: c.Type, Path: c.Path})
		}
	}
	return call
}

// wholeCall returns a tool call merged with the agent's earlier reports of it.
func (t *translator) wholeCall(call runnerscripts.ToolCall) runnerscripts.ToolCall {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls[call.ToolCallID].with(call)
}

// asked reports a tool call that needs permission. Content of the request other than a file
// change is a remark, not the call's content.
func (t *translator) asked(call runnerscripts.ToolCall) {
	call.Content = slices.DeleteFunc(slices.Clone(call.Content), func(c runnerscripts.ToolCallContent) bool {
		return c.Type == "content"
	})
	t.toolCall(call)
}

// busy reports whether a tool call is open.
func (t *translator) busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.calls {
		if c.open {
			return true
		}
	}
	return false
}

// endCalls ends the open tool calls.
func (t *translator) endCalls() {
	t.mu.Lock()
	var ids []string
	for id, c := range t.calls {
		if c.open {
			ids = append(ids, id)
			c.open = false
			t.calls[id] = c
		}
	}
	t.mu.Unlock()
	for _, id := range ids {
		t.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeToolCallUpdate, runnerscripts.ToolCall{
			ToolCallID: id, Status: runnerscripts.ToolFailed,
		})
	}
}

// takeBackPrompt withdraws a prompt that got no answer, and reports whether it did.
func (t *translator) takeBackPrompt() bool {
	t.mu.Lock()
	id, silent := record.BlockID(t.promptID, 0), t.blocks == 1
	if silent {
		t.prompts--
	}
	t.mu.Unlock()
	if silent {
		t.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeUserMessage, runnerscripts.ContentChunk{
			BlockID: id, Content: runnerscripts.Content{Type: "text"}, Snapshot: true,
		})
	}
	return silent
}

// takeBack empties the blocks of an answer that the agent does not remember, and reports
// whether there were any.
func (t *translator) takeBack() bool {
	t.mu.Lock()
	blocks := t.draft
	t.draft, t.open = nil, ""
	t.mu.Unlock()
	for _, b := range blocks {
		t.out.Emit(runnerscripts.MainConversation, b.typ, runnerscripts.ContentChunk{
			BlockID: b.id, Content: runnerscripts.Content{Type: "text"}, Snapshot: true,
		})
	}
	return len(blocks) > 0
}

// usageUpdate is ACP's usage update: how full the context is, and the cost of the session.
type usageUpdate struct {
	runnerscripts.UsageUpdate
	Cost *struct {
		Amount   float64 `json:"amount"`
		Currency string  `json:"currency"`
	} `json:"cost,omitempty"`
}

// dollars returns the cost of the session, if known.
func (u usageUpdate) dollars() (float64, bool) {
	if u.Cost == nil || u.Cost.Currency != "USD" {
		return 0, false
	}
	return u.Cost.Amount, true
}

// usage reports how full the context is.
func (t *translator) usage(u Update) error {
	var payload usageUpdate
	if err := json.Unmarshal(u.Raw, &payload); err != nil {
		return err
	}
	if cost, ok := payload.dollars(); ok {
		t.mu.Lock()
		t.spent += max(cost-t.cost, 0)
		t.cost = cost
		t.mu.Unlock()
	}
	t.out.Emit(runnerscripts.MainConversation, runnerscripts.TypeUsageUpdate, payload)
	return nil
}

// costOfQuery returns the cost of the running query as reported by the agent, in dollars.
func (t *translator) costOfQuery() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.spent
}
