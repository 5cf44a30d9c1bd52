package sessiontest

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"sync"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

func eventsNumbers(r *run) {
	s := r.start(steps{say("one")}, steps{say("two")})
	r.converse(s, "a")
	r.must(s.TerminateEnvironment(r.Context()))
	r.converse(s, "b")
	for i, ev := range r.log(s) {
		if ev.Seq != uint64(i+1) || ev.SessionID != s.ID() || ev.Time.IsZero() || !json.Valid(ev.Payload) {
			r.Errorf("event %d is %+v", i+1, ev)
		}
	}
}

func eventsFrom(r *run) {
	s := r.start(steps{say("one")}, steps{say("two")})
	r.converse(s, "a")
	all := r.log(s)
	for _, from := range []uint64{0, 1, 3, uint64(len(all))} {
		for ev, err := range s.Events(r.Context(), from) {
			r.must(err)
			if ev.Seq != max(from, 1) {
				r.Errorf("from %d the first event is %d", from, ev.Seq)
			}
			break
		}
	}
	next := uint64(len(all)) + 1
	got := make(chan runnerscripts.Event, 1)
	go func() {
		defer close(got)
		for ev, err := range s.Events(r.Context(), next) {
			if err == nil {
				got <- ev
			}
			return
		}
	}()
	r.converse(s, "b")
	if ev, ok := <-got; !ok || ev.Seq != next {
		r.Errorf("from the next the first event is %d, %t, want %d", ev.Seq, ok, next)
	}
}

// readTo reads the events up to a number.
func (r *run) readTo(s Session, last uint64) (all []runnerscripts.Event) {
	for ev, err := range s.Events(r.Context(), 0) {
		if err != nil {
			r.Error(err)
			return all
		}
		if all = append(all, ev); ev.Seq == last {
			return all
		}
	}
	r.Error("the events have ended")
	return all
}

func eventsReaders(r *run) {
	s := r.start(steps{say("one")}, steps{ask(write("asked", "")), say("two")})
	r.converse(s, "a")
	const readers = 4
	logs := make([][]runnerscripts.Event, readers)
	var reading sync.WaitGroup
	t := r.prompt(s, "b")
	for i := range readers {
		reading.Go(func() {
			for ev, err := range s.Events(r.Context(), 0) {
				if err != nil {
					r.Error(err)
					return
				}
				if logs[i] = append(logs[i], ev); ev.QueryID == t.ID() && ev.Type == runnerscripts.TypeQueryCompleted {
					return
				}
			}
		})
	}
	req := r.asked(s)
	r.must(s.Respond(r.Context(), req.ID, req.Allow()))
	r.complete(t)
	reading.Wait()
	for i := 1; i < readers; i++ {
		if !reflect.DeepEqual(numbers(logs[0]), numbers(logs[i])) {
			r.Errorf("reader %d got %v, the first %v", i, numbers(logs[i]), numbers(logs[0]))
		}
	}
}

func numbers(events []runnerscripts.Event) []uint64 {
	var all []uint64
	for _, ev := range events {
		all = append(all, ev.Seq)
	}
	return all
}

func eventsSlow(r *run) {
	s := r.start(steps{say("x")})
	waits, goOn := make(chan struct{}), make(chan struct{})
	wait := sync.OnceFunc(func() { close(waits) })
	var slow []runnerscripts.Event
	var reading sync.WaitGroup
	first := r.prompt(s, "a")
	reading.Go(func() {
		defer wait()
		for ev, err := range s.Events(r.Context(), 0) {
			if err != nil {
				r.Error(err)
				return
			}
			if slow = append(slow, ev); len(slow) == 1 {
				wait()
				<-goOn
			}
		}
	})
	<-waits
	r.complete(first)
	r.converse(s, "b")
	last := r.state(s).LastSeq
	close(goOn)
	r.must(r.host.Unload(r.Context(), s.ID())) // the events end
	reading.Wait()
	for i, ev := range slow {
		if ev.Seq != uint64(i+1) {
			r.Fatalf("after %d the slow reader got %d", i, ev.Seq)
		}
	}
	if uint64(len(slow)) < last {
		r.Errorf("the slow reader got %d events of %d", len(slow), last)
	}
}

func eventsEnd(r *run) {
	s := r.start(steps{say("x")})
	r.converse(s, "a")
	r.await(s, runnerscripts.TypeSessionIdle) // which comes after the end of the query
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(r.Context())
	last := r.state(s).LastSeq
	for ev, err := range s.Events(ctx, last) {
		if err == nil && ev.Seq == last {
			cancel(cause)
			continue
		}
		if err == nil || ctx.Err() == nil {
			r.Errorf("after the end of the context: %+v, %v", ev, err)
		}
	}
	cancel(nil)
	ended := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		var failed error
		for ev, err := range s.Events(r.Context(), last) {
			if failed = err; ev.Seq == last {
				close(begun)
			}
		}
		ended <- failed
	}()
	select {
	case <-begun:
	case err := <-ended:
		r.Fatalf("the events end before the session: %v", err)
	}
	r.must(r.host.Unload(r.Context(), s.ID()))
	if err := <-ended; err != nil {
		r.Errorf("at the end of the session: %v", err)
	}
}

func stateFold(r *run) {
	s := r.start(steps{say("one"), write("f", "1\n")}, steps{ask(write("g", "2\n"))}, steps{say("three")})
	r.converse(s, "a")
	t := r.prompt(s, "b")
	req := r.asked(s)
	check := func(when string) {
		r.Helper()
		state := r.state(s)
		c := session.NewConversation()
		for _, ev := range r.readTo(s, state.LastSeq) {
			c.Apply(ev)
		}
		want, err := json.Marshal(c.State)
		r.must(err)
		got, err := json.Marshal(state)
		r.must(err)
		if string(got) != string(want) {
			r.Errorf("%s the state is\n%s\nand its events say\n%s", when, got, want)
		}
	}
	check("while a question waits")
	r.must(s.Respond(r.Context(), req.ID, req.Reject("no")))
	r.complete(t)
	check("after a query")
	r.must(s.TerminateEnvironment(r.Context()))
	check("without a sandbox")
	r.must(s.Rewind(r.Context(), 1))
	check("after a rewind")
}
