package environment

import (
	"errors"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// tenLines is a whole runner script.
const tenLines = `
read -r request
echo '{"type":"query_started","payload":{"prompt":"?"}}'
echo hello > hello.txt
echo '{"type":"agent_message_chunk","payload":{"blockId":"1","content":{"type":"text","text":"done"}}}'
echo '{"type":"query_completed","payload":{"stop_reason":"end_turn"}}'
echo '{"type":"result","ok":true}'
`

func TestAScriptOfTenLinesIsARunner(t *testing.T) {
	noFilesLeft(t)
	env := withQuery(t, tenLines)
	for range 2 {
		events, err := collect(t.Context(), env, Query{Prompt: "write", ID: "q1"})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := types(events), "query_started agent_message_chunk query_completed"; got != want {
			t.Fatalf("events %q, want %q", got, want)
		}
		ev := events[1]
		if ev.Text() != "done" || ev.SessionID != env.SessionID() || ev.QueryID != "q1" ||
			ev.Source != runnerscripts.SourceRunner || ev.ConversationID != runnerscripts.MainConversation || ev.Time.IsZero() {
			t.Errorf("the event is not filled in: %+v", ev)
		}
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t.Context(), env, Query{Prompt: "again"}); !errors.Is(err, ErrClosed) {
		t.Errorf("a query after Close: %v, want ErrClosed", err)
	}
}
