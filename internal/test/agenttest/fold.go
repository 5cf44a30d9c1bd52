package agenttest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

// Fold reduces events to a conversation, with the product's own reducer.
func Fold(t testing.TB, events []runnerscripts.Event) *session.Conversation {
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

// SameConversation fails the test unless both lists of events fold to the same conversation.
func SameConversation(t testing.TB, live, stored []runnerscripts.Event) {
	t.Helper()
	a, b := showConversation(t, Fold(t, live)), showConversation(t, Fold(t, stored))
	if a != b {
		t.Errorf("the conversation differs\nlive:\n%s\ntranscript:\n%s", a, b)
	}
}

// showConversation formats the content of a conversation, without times.
func showConversation(t testing.TB, c *session.Conversation) string {
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
	return Show(t, map[string]any{"blocks": c.Blocks, "subagents": c.Subagents})
}

// Show formats v as JSON with sorted keys, for comparison.
func Show(t testing.TB, v any) string {
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

// Said returns the agent's text, with a line break after each block.
func Said(t testing.TB, events []runnerscripts.Event) string {
	t.Helper()
	var b strings.Builder
	for _, blk := range Fold(t, events).Blocks {
		if blk.Kind == session.BlockAgent {
			b.WriteString(blk.Text + "\n")
		}
	}
	return b.String()
}
