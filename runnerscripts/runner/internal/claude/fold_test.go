package claude

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// fold makes a conversation of events, with the reducer that everybody uses.
func fold(t *testing.T, events []runnerscripts.Event) *session.Conversation {
	t.Helper()
	c, err := session.Reduce(func(yield func(runnerscripts.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	})
	if err != nil || c.Unreadable != 0 {
		t.Fatalf("fold: %v, %d unreadable", err, c.Unreadable)
	}
	return c
}

func payload[T any](t *testing.T, e runnerscripts.Event) T {
	t.Helper()
	p, err := runnerscripts.Payload[T](e)
	if err != nil {
		t.Fatalf("%s: %v", e.Type, err)
	}
	return p
}

// sameConversation fails unless both lists of events fold to the same.
func sameConversation(t *testing.T, live, stored []runnerscripts.Event) {
	t.Helper()
	a, b := showConversation(t, fold(t, live)), showConversation(t, fold(t, stored))
	if a != b {
		t.Errorf("the conversation differs\nlive:\n%s\ntranscript:\n%s", a, b)
	}
}

// showConversation shows what was said and done, without when.
func showConversation(t *testing.T, c *session.Conversation) string {
	t.Helper()
	timeless := func(blocks []*session.Block) {
		for _, b := range blocks {
			b.Time = time.Time{}
		}
	}
	timeless(c.Blocks)
	for _, s := range c.Subagents {
		timeless(s.Blocks)
	}
	return show(t, map[string]any{"blocks": c.Blocks, "subagents": c.Subagents})
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
