package claude

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// folded is a conversation as events make it: the same whether they come live or
// from a transcript.
type folded struct {
	Conversations map[string][]*foldedBlock
	Started       []runnerscripts.SubagentStarted
	Completed     []runnerscripts.SubagentCompleted
	Plan          runnerscripts.Plan
}

type foldedBlock struct {
	Kind runnerscripts.EventType
	ID   string
	Text string                  `json:",omitempty"`
	Call *runnerscripts.ToolCall `json:",omitempty"`
}

func fold(t *testing.T, events []runnerscripts.Event) folded {
	t.Helper()
	f := folded{Conversations: map[string][]*foldedBlock{}}
	for _, e := range events {
		switch e.Type {
		case runnerscripts.TypeUserMessage, runnerscripts.TypeAgentMessage, runnerscripts.TypeAgentThought:
			c := payload[runnerscripts.ContentChunk](t, e)
			b := f.block(e, c.BlockID)
			if c.Snapshot {
				b.Text = ""
			}
			b.Text += c.Content.Text
		case runnerscripts.TypeToolCall, runnerscripts.TypeToolCallUpdate:
			c := payload[runnerscripts.ToolCall](t, e)
			b := f.block(e, c.ToolCallID)
			b.Kind = runnerscripts.TypeToolCall
			b.Call = merge(b.Call, c)
		case runnerscripts.TypePlan:
			f.Plan = payload[runnerscripts.Plan](t, e)
		case runnerscripts.TypeSubagentStarted:
			f.Started = append(f.Started, payload[runnerscripts.SubagentStarted](t, e))
		case runnerscripts.TypeSubagentCompleted:
			f.Completed = append(f.Completed, payload[runnerscripts.SubagentCompleted](t, e))
		}
	}
	return f
}

func payload[T any](t *testing.T, e runnerscripts.Event) T {
	t.Helper()
	p, err := runnerscripts.Payload[T](e)
	if err != nil {
		t.Fatalf("%s: %v", e.Type, err)
	}
	return p
}

func (f folded) block(e runnerscripts.Event, id string) *foldedBlock {
	list := f.Conversations[e.ConversationID]
	i := slices.IndexFunc(list, func(b *foldedBlock) bool { return b.ID == id })
	if i >= 0 {
		return list[i]
	}
	b := &foldedBlock{Kind: e.Type, ID: id}
	f.Conversations[e.ConversationID] = append(list, b)
	return b
}

// merge applies an update: fields that are not set did not change.
func merge(old *runnerscripts.ToolCall, update runnerscripts.ToolCall) *runnerscripts.ToolCall {
	if old == nil {
		return &update
	}
	merged := *old
	data, err := json.Marshal(update)
	if err != nil {
		panic(err)
	}
	if update.Content != nil {
		merged.Content = nil // else old elements show through
	}
	if err := json.Unmarshal(data, &merged); err != nil {
		panic(err)
	}
	return &merged
}

// sameConversation fails unless both lists of events fold to the same.
func sameConversation(t *testing.T, live, stored []runnerscripts.Event) {
	t.Helper()
	a, b := show(t, fold(t, live)), show(t, fold(t, stored))
	if a != b {
		t.Errorf("the conversation differs\nlive:\n%s\ntranscript:\n%s", a, b)
	}
}

// show is comparable: JSON whose objects have sorted keys.
func show(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var anything any
	if err := json.Unmarshal(data, &anything); err != nil {
		t.Fatal(err)
	}
	data, err = json.MarshalIndent(anything, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
