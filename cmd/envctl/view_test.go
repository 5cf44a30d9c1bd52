package main

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
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

// A query that ended while another one was printed is printed in its turn.
func TestQueriesThatEndedMeanwhileAreAllPrinted(t *testing.T) {
	alone(t)
	st := store.NewMemory()
	s, err := session.Open(t.Context(), session.Config{Store: st, NoFiles: true, Environment: environment.Config{
		Sandbox: environment.Sandbox{Type: "local"}, Agent: environment.Agent{Name: "script"}, OnPermission: environment.AllowAll,
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	var turns []*session.Turn
	for _, prompt := range []string{"one", "two"} {
		turn, err := s.Prompt(t.Context(), prompt)
		if err != nil {
			t.Fatal(err)
		}
		turns = append(turns, turn)
	}
	for _, turn := range turns {
		if _, err := turn.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	log := logOf(s, st)
	if err := log.from(t.Context(), turns[0]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	next := uint64(1)
	for _, turn := range turns {
		ended := false
		for ev, err := range log.turn(ctx, turn) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Seq != next {
				t.Fatalf("event %d comes after %d", ev.Seq, next-1)
			}
			next++
			ended = ended || ev.QueryID == turn.ID() && ev.Type == runnerscripts.TypeQueryCompleted
		}
		if !ended {
			t.Error("the end of a query is missing")
		}
	}
}
