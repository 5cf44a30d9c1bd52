package sessiontest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

func promptAnswer(r *run) {
	s := r.start(steps{say("hello {{prompt}}")})
	t := r.prompt(s, "world")
	if done := r.complete(t); done.StopReason != runnerscripts.StopEndTurn {
		r.Errorf("it stopped because of %q", done.StopReason)
	}
	events := r.events(t)
	if said(events) != "hello world" {
		r.Errorf("the agent said %q", said(events))
	}
	first, last := events[0], events[len(events)-1]
	if first.Type != runnerscripts.TypeQueryQueued || first.QueryID != t.ID() || last.Type != runnerscripts.TypeQueryCompleted || last.QueryID != t.ID() {
		r.Errorf("the events are from %s of %s to %s of %s, want those of %s", first.Type, first.QueryID, last.Type, last.QueryID, t.ID())
	}
}

func promptOrder(r *run) {
	s := r.start(steps{say("{{prompt}} after [{{history}}]")})
	var turns []Turn
	for i := range 5 {
		turns = append(turns, r.prompt(s, fmt.Sprint("p", i)))
	}
	var before []string
	for i, t := range turns {
		r.complete(t)
		want := fmt.Sprintf("p%d after [%s]", i, strings.Join(before, "\n"))
		if got := said(r.events(t)); got != want {
			r.Errorf("the agent said %q, want %q", got, want)
		}
		before = append(before, fmt.Sprint("p", i))
	}
}

func promptEmpty(r *run) {
	s := r.start(steps{say("x")})
	t, err := s.Prompt(r.Context(), "")
	r.want("an empty prompt", err, fs.ErrInvalid)
	if t != nil {
		r.Error("there is a turn")
	}
	if n := len(r.log(s)); n != 0 {
		r.Errorf("it left %d events", n)
	}
}

func promptAttachments(r *run) {
	s := r.start(steps{say("{{attachments}}")}, steps{say("none: {{attachments}}")})
	image := []byte("\x89PNG\r\n\x1a\n")
	t, err := s.Prompt(r.Context(), "look", runnerscripts.Attachment{Data: image}, runnerscripts.Attachment{Name: "a.md", MediaType: "text/markdown", Data: []byte("# a")})
	r.must(err)
	r.complete(t)
	want := fmt.Sprintf("image.png image/png %x\na.md text/markdown %x", sha256.Sum256(image), sha256.Sum256([]byte("# a")))
	if got := said(r.events(t)); got != want {
		r.Errorf("the agent got %q, want %q", got, want)
	}
	for _, ev := range r.events(t) {
		if ev.Type != runnerscripts.TypeQueryQueued && ev.Type != runnerscripts.TypeQueryStarted {
			continue
		}
		p, err := runnerscripts.Payload[runnerscripts.QueryStarted](ev)
		r.must(err)
		if len(p.Attachments) != 2 || p.Attachments[0].Name != "image.png" || p.Attachments[1].Size != 3 || p.Attachments[0].Data != nil {
			r.Errorf("%s has %+v", ev.Type, p.Attachments)
		}
	}
	if got := r.converse(s, "again"); got != "none: " {
		r.Errorf("with the next prompt the agent got %q", got)
	}
}

func promptUnaccepted(r *run) {
	cfg := r.config()
	cfg.Environment.Agent = environment.Agent{Name: "command", Command: []string{"cat"}}
	s := r.create(cfg)
	_, err := s.Prompt(r.Context(), "look", runnerscripts.Attachment{Data: []byte("GIF89a")})
	r.want("an image for an executor", err, errors.ErrUnsupported)
	if err != nil && !strings.Contains(err.Error(), `the agent "command" accepts no images`) {
		r.Errorf("the error does not say what is not accepted: %v", err)
	}
	_, err = s.Prompt(r.Context(), "look", runnerscripts.Attachment{Name: "a/b", Data: []byte("text")})
	r.want("a name with a folder", err, fs.ErrInvalid)
	_, err = s.Prompt(r.Context(), "look", runnerscripts.Attachment{Data: make([]byte, runnerscripts.MaxAttachments+1)})
	r.want("too much", err, primitives.ErrLimit)
	if n := len(r.log(s)); n != 0 {
		r.Errorf("they left %d events", n)
	}
}

// lineSchema is the schema of an output.
var lineSchema = json.RawMessage(`{"type":"object","required":["line"]}`)

func promptSchema(r *run) {
	s := r.start(steps{say("no")}, steps{say(`{"line":7}`)}, steps{say("free")}, steps{say("no")}, steps{say("no")}, steps{say("no")})
	t, err := s.PromptQuery(r.Context(), environment.Query{Prompt: "go", OutputSchema: lineSchema})
	r.must(err)
	if done := r.complete(t); string(done.ResultData) != `{"line":7}` {
		r.Errorf("the output is %s", done.ResultData)
	}
	for _, ev := range r.events(t) {
		if ev.Type != runnerscripts.TypeQueryQueued && ev.Type != runnerscripts.TypeQueryStarted {
			continue
		}
		if p, err := runnerscripts.Payload[runnerscripts.QueryStarted](ev); err != nil || string(p.OutputSchema) != string(lineSchema) {
			r.Errorf("%s has %s, %v", ev.Type, ev.Payload, err)
		}
	}
	if done := r.complete(r.prompt(s, "again")); done.ResultData != nil {
		r.Errorf("the output of the next prompt is %s", done.ResultData)
	}
	t, err = s.PromptQuery(r.Context(), environment.Query{Prompt: "go", OutputSchema: lineSchema})
	r.must(err)
	_, err = t.Wait(r.Context())
	if failed, ok := errors.AsType[*session.QueryError](err); !ok || failed.Failure.Code != runnerscripts.FailOutput || failed.Failure.Detail == nil || len(failed.Failure.Detail.Violations) != 1 {
		r.Errorf("output that never matches: %v", err)
	}
}

func promptOwn(r *run) {
	s := r.start(steps{say("x")})
	for name, q := range map[string]environment.Query{
		"an ID": {Prompt: "go", ID: "a"}, "After": {Prompt: "go", After: 1}, "Detach": {Prompt: "go", Detach: true},
		"a bad schema": {Prompt: "go", OutputSchema: json.RawMessage(`5`)}, "a reference": {Prompt: "go", OutputSchema: json.RawMessage(`{"$ref":"https://example.com"}`)},
	} {
		_, err := s.PromptQuery(r.Context(), q)
		r.want(name, err, fs.ErrInvalid)
	}
	_, err := s.PromptQuery(r.Context(), environment.Query{Prompt: "go", OutputSchema: json.RawMessage(`"` + strings.Repeat("x", environment.MaxOutputSchema) + `"`)})
	r.want("too large a schema", err, primitives.ErrLimit)
	if n := len(r.log(s)); n != 0 {
		r.Errorf("they left %d events", n)
	}
}

func promptFull(r *run) {
	cfg := r.config(steps{forever()})
	cfg.MaxQueue = 2
	s := r.create(cfg)
	r.prompt(s, "runs")
	r.await(s, runnerscripts.TypeQueryStarted)
	r.prompt(s, "waits")
	r.prompt(s, "waits, too")
	_, err := s.Prompt(r.Context(), "one too many")
	r.want("a third that waits", err, session.ErrBusy)
	if n := len(r.state(s).Queued); n != 2 {
		r.Errorf("%d prompts are queued", n)
	}
}

func promptBusy(r *run) {
	cfg := r.config(steps{forever()}, steps{say("later")})
	cfg.RejectBusy = true
	s := r.create(cfg)
	first := r.prompt(s, "runs")
	_, err := s.Prompt(r.Context(), "meanwhile")
	if r.want("a prompt beside another", err, session.ErrBusy); r.Failed() {
		return
	}
	r.await(s, runnerscripts.TypeQueryStarted)
	r.must(s.Interrupt(r.Context()))
	r.complete(first)
	if got := r.converse(s, "then"); got != "later" {
		r.Errorf("afterwards the agent said %q", got)
	}
}

func promptContext(r *run) {
	s := r.start(steps{say("done")})
	ctx, cancel := context.WithCancel(r.Context())
	t, err := s.Prompt(ctx, "go")
	r.must(err)
	cancel()
	r.complete(t)
	if got := said(r.events(t)); got != "done" {
		r.Errorf("the agent said %q", got)
	}
	cancelled, cancel := context.WithCancel(r.Context())
	cancel()
	_, err = s.Prompt(cancelled, "too late")
	r.want("a prompt whose context is done", err, context.Canceled)
	if n := count(r.log(s), runnerscripts.TypeQueryQueued); n != 1 {
		r.Errorf("%d prompts were accepted, want 1", n)
	}
}

func turnAgain(r *run) {
	s := r.start(steps{say("one")}, steps{say("two")})
	t := r.prompt(s, "a")
	r.complete(t)
	live := r.events(t)
	r.converse(s, "b")
	if again := r.events(t); !slices.EqualFunc(live, again, func(a, b runnerscripts.Event) bool { return a.Seq == b.Seq && a.Type == b.Type }) {
		r.Errorf("read again it has %d events, at first %d", len(again), len(live))
	}
}

func turnOwn(r *run) {
	s := r.start(steps{say("one")}, steps{say("two")})
	a, b := r.prompt(s, "a"), r.prompt(s, "b")
	r.complete(b)
	for _, t := range []Turn{a, b} {
		for _, ev := range r.events(t) {
			if ev.QueryID != "" && ev.QueryID != t.ID() {
				r.Errorf("the query %s has the event %d of %s", t.ID(), ev.Seq, ev.QueryID)
			}
		}
	}
	if got := said(r.events(a)) + " " + said(r.events(b)); got != "one two" {
		r.Errorf("they said %q", got)
	}
}

func turnFailed(r *run) {
	s := r.start(steps{{Fail: &runnerscripts.ScriptFailure{Code: runnerscripts.FailAPI, Message: "overloaded", HTTPStatus: 529}}}, steps{say("better")})
	t := r.prompt(s, "go")
	_, err := t.Wait(r.Context())
	failed, ok := errors.AsType[*session.QueryError](err)
	if !ok || failed.QueryID != t.ID() || failed.Failure.Code != runnerscripts.FailAPI || failed.Failure.HTTPStatus != 529 || !strings.Contains(err.Error(), "overloaded") {
		r.Errorf("error %v, want a QueryError of %s", err, t.ID())
	}
	events := r.events(t)
	if last := events[len(events)-1]; last.Type != runnerscripts.TypeQueryFailed {
		r.Errorf("the last event is %s", last.Type)
	}
	if got := r.converse(s, "again"); got != "better" {
		r.Errorf("afterwards the agent said %q", got)
	}
}

func turnWait(r *run) {
	s := r.start(steps{ask(write("asked", "")), say("done")})
	t := r.prompt(s, "go")
	req := r.asked(s)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(r.Context())
	cancel(cause)
	_, err := t.Wait(ctx)
	r.want("a caller that has gone", err, cause)
	for _, err := range t.Events(r.Context()) {
		r.must(err)
		break
	}
	r.must(s.Respond(r.Context(), req.ID, req.Allow()))
	r.complete(t)
}

func interruptRunning(r *run) {
	s := r.start(steps{forever()}, steps{say("next")})
	t := r.prompt(s, "go")
	r.await(s, runnerscripts.TypeQueryStarted)
	r.must(s.Interrupt(r.Context()))
	r.must(s.Interrupt(r.Context()))
	if done := r.complete(t); done.StopReason != runnerscripts.StopCancelled {
		r.Errorf("it stopped because of %q", done.StopReason)
	}
	if got := r.converse(s, "on"); got != "next" {
		r.Errorf("the agent said %q", got)
	}
}

func interruptQueued(r *run) {
	s := r.start(steps{forever()}, steps{say("third")})
	first, second, third := r.prompt(s, "1"), r.prompt(s, "2"), r.prompt(s, "3")
	r.await(s, runnerscripts.TypeQueryStarted)
	r.must(second.Interrupt(r.Context()))
	if done := r.complete(second); done.StopReason != runnerscripts.StopCancelled {
		r.Errorf("the withdrawn one stopped because of %q", done.StopReason)
	}
	if count(r.events(second), runnerscripts.TypeQueryStarted) != 0 {
		r.Error("the withdrawn one was started")
	}
	if q := r.state(s).Query; q == nil || q.ID != first.ID() {
		r.Errorf("%+v runs, want the first", q)
	}
	r.must(first.Interrupt(r.Context()))
	r.complete(first)
	r.complete(third)
	if got := said(r.events(third)); got != "third" {
		r.Errorf("the third said %q", got)
	}
	r.must(third.Interrupt(r.Context())) // it has ended
}

func interruptIdle(r *run) {
	s := r.start(steps{say("x")})
	r.must(s.Interrupt(r.Context()))
	if got := r.converse(s, "go"); got != "x" {
		r.Errorf("the agent said %q", got)
	}
	r.await(s, runnerscripts.TypeSessionIdle) // which comes after the end of the query
	before := len(r.log(s))
	r.must(s.Interrupt(r.Context()))
	if after := len(r.log(s)); after != before {
		r.Errorf("an interrupt of nothing left %d events", after-before)
	}
}

func optionsNone(r *run) {
	s := r.start(steps{say("x")})
	r.want("no option", s.SetOptions(r.Context(), session.Options{}), fs.ErrInvalid)
}

func optionsLater(r *run) {
	s := r.start(steps{say("as {{model}}")})
	r.converse(s, "first")
	r.must(s.SetOptions(r.Context(), session.Options{Model: "m2"}))
	if got := r.converse(s, "second"); got != "as m2" {
		r.Errorf("the agent said %q", got)
	}
	r.must(s.TerminateEnvironment(r.Context()))
	if got := r.converse(s, "third"); got != "as m2" {
		r.Errorf("in a new sandbox the agent said %q", got)
	}
	if got := r.state(s).Options.Model; got != "m2" {
		r.Errorf("the state says %q", got)
	}
}

func onceAgain(r *run) {
	s := r.start(steps{say("7")}, steps{{Fail: &runnerscripts.ScriptFailure{Code: runnerscripts.FailAPI, Message: "broken"}}}, steps{forever()})
	ids := map[string]string{} // of the queries
	send := func(id string) Turn {
		r.Helper()
		t, err := s.PromptOnce(r.Context(), environment.Query{ID: id, Prompt: "go", Attachments: []runnerscripts.Attachment{{Data: []byte("text")}}, OutputSchema: json.RawMessage(` true `)})
		r.must(err)
		if before, sent := ids[id]; sent && before != t.ID() {
			r.Fatalf("the %s query is %s, want %s", id, t.ID(), before)
		}
		ids[id] = t.ID()
		return t
	}
	done := r.complete(send("ended"))
	_, failed := send("failed").Wait(r.Context())
	send("running")
	send("queued")
	for range 2 { // as long as the session is open, and when it was opened again
		if again := r.complete(send("ended")); again.StopReason != done.StopReason || again.DurationMS != done.DurationMS {
			r.Errorf("the query that has ended: %+v, want %+v", again, done)
		}
		if _, err := send("failed").Wait(r.Context()); fmt.Sprint(err) != fmt.Sprint(failed) {
			r.Errorf("the query that has failed: %v, want %v", err, failed)
		}
		r.must(send("queued").Interrupt(r.Context()))
		r.must(send("running").Interrupt(r.Context()))
		for _, id := range []string{"running", "queued"} {
			if done := r.complete(send(id)); done.StopReason != runnerscripts.StopCancelled {
				r.Errorf("the %s query stopped because of %q", id, done.StopReason)
			}
		}
		r.must(r.host.Unload(r.Context(), s.ID()))
		var err error
		s, err = r.host.Open(r.Context(), s.ID())
		r.must(err)
	}
	n := 0
	for _, ev := range r.log(s) {
		if ev.Type == runnerscripts.TypeQueryQueued {
			n++
		}
	}
	if n != 4 {
		r.Errorf("%d prompts were accepted, want 4", n)
	}
}

func onceOther(r *run) {
	s := r.start(steps{say("x")})
	first := environment.Query{ID: "id", Prompt: "go", Attachments: []runnerscripts.Attachment{{Name: "a.txt", Data: []byte("text")}}}
	t, err := s.PromptOnce(r.Context(), first)
	r.must(err)
	r.complete(t)
	r.await(s, runnerscripts.TypeSessionIdle) // which comes after the end of the query
	before := len(r.log(s))
	for what, change := range map[string]func(*environment.Query){
		"another text": func(q *environment.Query) { q.Prompt = "else" },
		"another attachment": func(q *environment.Query) {
			q.Attachments = []runnerscripts.Attachment{{Name: "a.txt", Data: []byte("tex")}}
		},
		"no attachment":    func(q *environment.Query) { q.Attachments = nil },
		"an output schema": func(q *environment.Query) { q.OutputSchema = lineSchema },
		"no ID":            func(q *environment.Query) { q.ID = "" },
		"After":            func(q *environment.Query) { q.After = 1 },
		"an empty text":    func(q *environment.Query) { q.Prompt = "" },
	} {
		q := first
		change(&q)
		_, err := s.PromptOnce(r.Context(), q)
		r.want(what, err, fs.ErrInvalid)
	}
	if n := len(r.log(s)); n != before {
		r.Errorf("there are %d events, want %d", n, before)
	}
}
