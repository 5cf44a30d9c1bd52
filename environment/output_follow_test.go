package environment

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// outputs returns a turn that waits for a file and then says a text, for each text.
func outputs(said ...string) (turns []runnerscripts.ScenarioTurn) {
	for _, text := range said {
		t := waiting("go-on")
		t.Steps[2].Text = text
		turns = append(turns, t)
	}
	return turns
}

// lastOf returns the result of a query that has completed, or its failure.
func lastOf(t *testing.T, events []runnerscripts.Event) (result string, code runnerscripts.FailureCode) {
	t.Helper()
	switch v := once(t, events).Value().(type) {
	case *runnerscripts.QueryCompleted:
		return string(v.ResultData), ""
	case *runnerscripts.QueryFailed:
		return "", v.Code
	}
	return "", ""
}

// A program that follows a query asks again in place of one that is gone, and all that follow come to the same end.
func TestAProgramThatFollowsAQueryAsksAgain(t *testing.T) {
	t.Setenv(schemaVariable, string(bugSchema))
	box := sandbox(t)
	for name, c := range map[string]struct {
		said   []string
		result string
		code   runnerscripts.FailureCode
	}{
		"it matches at last": {[]string{"no", "{}", `{"file":"a.go","line":7}`}, `{"file":"a.go","line":7}`, ""},
		"it never matches":   {[]string{"no", "{}", `{"file":1}`}, "", runnerscripts.FailOutput},
	} {
		t.Run(name, func(t *testing.T) {
			id := killedHost(t, Config{Sandbox: toKeep(box), Agent: scenario(t, append(outputs(c.said...), text("after"))...)}, "before")
			env := attach(t, id, box)
			writeIn(t, env, "go-on", "")
			events, err := followed(t.Context(), env)
			if result, code := lastOf(t, events); result != c.result || code != c.code || (err == nil) != (code == "") {
				t.Fatalf("%q, %q, %v; the agent said %s", result, code, err, conversation(t, events))
			}
			unattended(t, env, false)
			other := attach(t, id, box)
			again, _ := followed(t.Context(), other)
			if result, code := lastOf(t, again); result != c.result || code != c.code || conversation(t, again) != conversation(t, events) {
				t.Errorf("followed again: %q, %q, %s", result, code, conversation(t, again))
			}
			if got := say(t, other, "go on"); !strings.Contains(got, "after") {
				t.Errorf("the next query: %s", got)
			}
		})
	}
}

// A query that goes on with its own ID is asked again too, for output of the schema that it began with. Events that the
// caller has are left out.
func TestAQueryIsContinuedWhoseOutputWaits(t *testing.T) {
	t.Setenv(schemaVariable, string(bugSchema))
	box := sandbox(t)
	id := killedHost(t, Config{Sandbox: toKeep(box), Agent: scenario(t, outputs("no", `{"file":"a.go","line":7}`)...)}, "before")
	env := attach(t, id, box)
	writeIn(t, env, "go-on", "")
	var last runnerscripts.Event
	ctx, cancel := context.WithCancel(t.Context())
	for ev, err := range env.FollowQuery(ctx, 0) { // up to the first output, which it leaves to the next
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if last = ev; strings.HasPrefix(ev.Text(), "no") {
			break
		}
	}
	cancel()
	q := Query{Prompt: "go", ID: "the-query", After: last.Index}
	events, err := collect(t.Context(), attach(t, id, box), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events {
		if ev.Index > 0 && ev.Index <= last.Index {
			t.Errorf("%s has the index %d", ev.Type, ev.Index)
		}
	}
	done, err := runnerscripts.Payload[runnerscripts.QueryCompleted](events[len(events)-1])
	if err != nil || string(done.ResultData) != `{"file":"a.go","line":7}` {
		t.Errorf("%s, %v", done.ResultData, err)
	}
}

// Two programs answer the same output; the agent is asked once.
func TestAQueryThatTwoProgramsFollowIsAskedAgainOnce(t *testing.T) {
	box := sandbox(t)
	env := create(t, Config{Sandbox: toKeep(box), Agent: scenario(t, outputs("no", `{"file":"a.go","line":7}`, "third")...)})
	removeLater(t, env)
	other := attach(t, env.ID(), box)
	end := make(chan []runnerscripts.Event, 1)
	begun := make(chan struct{})
	var own []runnerscripts.Event
	for ev, err := range env.ExecuteQuery(t.Context(), Query{Prompt: "find", OutputSchema: bugSchema}) {
		if err != nil {
			t.Fatal(err)
		}
		if own = append(own, ev); ev.Text() != "before" || begun == nil {
			continue
		}
		go func(begun chan struct{}) {
			begin := sync.OnceFunc(func() { close(begun) })
			defer begin()
			var events []runnerscripts.Event
			for ev, err := range other.FollowQuery(t.Context(), 0) {
				if events = append(events, ev); err != nil {
					t.Error(err)
				}
				begin()
			}
			end <- events
		}(begun)
		<-begun
		begun = nil
		writeIn(t, env, "go-on", "")
	}
	seen := <-end
	for _, events := range [][]runnerscripts.Event{own, seen} {
		if result, _ := lastOf(t, events); result != `{"file":"a.go","line":7}` {
			t.Errorf("the result is %q after %s", result, conversation(t, events))
		}
	}
	if a, b := conversation(t, own), conversation(t, seen); a != b {
		t.Errorf("one program saw %s\nthe other %s", a, b)
	}
}
