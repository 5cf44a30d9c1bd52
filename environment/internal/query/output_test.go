package query

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// message returns an event with a block of the agent's text or, with another type, of the user's.
func message(t *testing.T, typ runnerscripts.EventType, block, text string) runnerscripts.Event {
	t.Helper()
	payload, err := json.Marshal(runnerscripts.ContentChunk{BlockID: block, Content: runnerscripts.Content{Type: "text", Text: text}})
	if err != nil {
		t.Fatal(err)
	}
	return runnerscripts.Event{Type: typ, Payload: payload}
}

// The output of a turn is in what the agent said in it, also if the agent does not report the text that began the turn.
func TestATurnHasItsOwnOutput(t *testing.T) {
	var o output
	if err := o.begin(json.RawMessage(`{"type":"object"}`)); err != nil {
		t.Fatal(err)
	}
	o.add(message(t, runnerscripts.TypeAgentMessage, "1", "```json\n5\n```"))
	if answer := o.judge(runnerscripts.QueryOutput{ID: "a"}); answer.ID != "a" || answer.Text == "" {
		t.Errorf("the first turn: %+v", answer)
	}
	o.add(message(t, runnerscripts.TypeAgentMessage, "2", "```json\n{\"a\":1}\n```"))
	o.add(message(t, runnerscripts.TypeAgentMessage, "3", "That is all."))
	if answer := o.judge(runnerscripts.QueryOutput{ID: "b"}); answer.Text != "" || string(o.result) != `{"a":1}` {
		t.Errorf("the second turn: %+v, %s", answer, o.result)
	}
	o.end(nil) // the end of the query, after the last turn
	if string(o.result) != `{"a":1}` {
		t.Errorf("the output is %s", o.result)
	}
}

func TestAWrongOutputNamesWhyTheAgentStoppedEarly(t *testing.T) {
	r := run{q: &Queries{}}
	if err := r.output.begin(json.RawMessage(`{"type":"object"}`)); err != nil {
		t.Fatal(err)
	}
	for stop, want := range map[runnerscripts.StopReason]string{
		runnerscripts.StopRefusal:     "the agent stopped early, with refusal: invalid result",
		runnerscripts.StopMaxTokens:   "the agent stopped early, with max_tokens: invalid result",
		runnerscripts.StopMaxRequests: "the agent stopped early, with max_turn_requests: invalid result",
		runnerscripts.StopEndTurn:     "invalid result",
	} {
		failed := r.wrongResult(runnerscripts.QueryCompleted{StopReason: stop})
		if failed == nil || failed.Code != runnerscripts.FailOutput || !strings.HasPrefix(failed.Message, want) {
			t.Errorf("%s: %v", stop, failed)
		}
	}
}

func TestWhatWasSaidLastFollowsTheLastMessageOfTheUser(t *testing.T) {
	var s Said
	s.Add(message(t, runnerscripts.TypeAgentMessage, "1", "first"))
	s.Add(message(t, runnerscripts.TypeUserMessage, "2", "again"))
	if got := s.Text(); got != "first" {
		t.Errorf("without an answer: %q", got)
	}
	s.Add(message(t, runnerscripts.TypeAgentMessage, "3", "second"))
	if got := s.Text(); got != "second" {
		t.Errorf("with an answer: %q", got)
	}
}
