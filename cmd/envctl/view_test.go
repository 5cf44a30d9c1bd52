package main

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// The session asks as soon as it has stored a request; what the agent said before may not be printed
// yet.
func TestAQuestionComesAfterWhatTheAgentSaidBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, errOut bytes.Buffer
		a := newApp(strings.NewReader("y\n"), &out, &errOut)
		answer, err := a.newAnswerer(permissionAsk)
		if err != nil {
			t.Fatal(err)
		}
		v := a.newView(answer, a.newPrinter(false))
		req := environment.PermissionRequest{ID: "r", ToolCall: runnerscripts.ToolCall{Title: "Write a file"}}
		decided := make(chan environment.PermissionDecision, 1)
		go func() { decided <- v.decide(t.Context(), req) }()
		synctest.Wait()
		if errOut.Len() > 0 {
			t.Errorf("the question comes first:\n%s", &errOut)
		}
		if err := v.print(t.Context(), events(t,
			runnerscripts.TypeAgentMessage, runnerscripts.ContentChunk{Content: runnerscripts.Content{Type: "text", Text: "I write a file."}},
			runnerscripts.TypePermissionRequest, req,
		)); err != nil {
			t.Fatal(err)
		}
		if d := <-decided; !d.Kind.Allows() {
			t.Errorf("the answer is %+v", d)
		}
		if !strings.Contains(out.String(), "I write a file.") || !strings.Contains(errOut.String(), "Allow?") {
			t.Errorf("printed:\n%s%s", &out, &errOut)
		}
	})
}

// events returns events of these types and payloads.
func events(t *testing.T, pairs ...any) iter.Seq2[runnerscripts.Event, error] {
	t.Helper()
	var all []runnerscripts.Event
	for i := 0; i < len(pairs); i += 2 {
		typ, _ := pairs[i].(runnerscripts.EventType)
		payload, err := json.Marshal(pairs[i+1])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, runnerscripts.Event{Type: typ, Payload: payload, ConversationID: runnerscripts.MainConversation})
	}
	return func(yield func(runnerscripts.Event, error) bool) {
		for _, ev := range all {
			if !yield(ev, nil) {
				return
			}
		}
	}
}
