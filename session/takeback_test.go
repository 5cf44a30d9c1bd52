package session_test

import (
	"encoding/json"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

func TestABlockThatIsTakenBackIsGone(t *testing.T) {
	c := session.NewConversation()
	say := func(id, text string, snapshot bool) {
		payload, err := json.Marshal(runnerscripts.ContentChunk{
			BlockID: id, Content: runnerscripts.Content{Type: "text", Text: text}, Snapshot: snapshot,
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Apply(runnerscripts.Event{Type: runnerscripts.TypeAgentMessage, Payload: payload})
	}
	say("a", "stays", false)
	say("b", "half a", false)
	say("b", "", true)
	say("c", "", true) // unknown block
	say("d", "stays too", true)
	if len(c.Blocks) != 2 || c.Blocks[0].Text != "stays" || c.Blocks[1].Text != "stays too" {
		t.Errorf("blocks: %+v", c.Blocks)
	}
	say("b", "again", false)
	if len(c.Blocks) != 3 || c.Blocks[2].Text != "again" {
		t.Errorf("a block of the same id does not start anew: %+v", c.Blocks)
	}
}
