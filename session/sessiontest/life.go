package sessiontest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

func transcript(r *run) {
	s := r.start(steps{say("hello")})
	r.converse(s, "a")
	t, err := s.Transcript(r.Context())
	r.must(err)
	if t.Main == "" {
		r.Error("it is empty")
	}
}

func terminate(r *run) {
	s := r.start(steps{write("f", "1\n"), say("after {{history}}")})
	r.converse(s, "a")
	first := r.state(s).Environment
	r.must(s.TerminateEnvironment(r.Context()))
	if e := r.state(s).Environment; e.Status != session.EnvironmentTerminated {
		r.Errorf("the sandbox is %s", e.Status)
	}
	r.must(s.TerminateEnvironment(r.Context())) // there is none
	if got := r.converse(s, "b"); got != "after a" {
		r.Errorf("the agent said %q", got)
	}
	if e := r.state(s).Environment; e.Status != session.EnvironmentReady || e.ID == first.ID || e.Starts != 2 {
		r.Errorf("the second sandbox is %+v, the first was %+v", e, first)
	}
	if got := r.content(s, "f"); got != "1\n" {
		r.Errorf("f is %q", got)
	}
}

func unload(r *run) {
	s := r.start(steps{write("f", "1\n"), say("after {{history}}")})
	r.converse(s, "a")
	before := r.log(s)
	r.must(r.host.Unload(r.Context(), s.ID()))
	again, err := r.host.Open(r.Context(), s.ID())
	r.must(err)
	if got := r.converse(again, "b"); got != "after a" {
		r.Errorf("the agent said %q", got)
	}
	after := r.log(again)
	for i, ev := range before {
		if after[i].Seq != ev.Seq || after[i].Type != ev.Type || string(after[i].Payload) != string(ev.Payload) {
			r.Errorf("event %d was %+v and is %+v", ev.Seq, ev, after[i])
		}
	}
	if got := r.content(again, "f"); got != "1\n" {
		r.Errorf("f is %q", got)
	}
}

func openShared(r *run) {
	s := r.start(steps{say("x")})
	r.converse(s, "a")
	r.must(r.host.Unload(r.Context(), s.ID()))
	const callers = 4
	var opening sync.WaitGroup
	opened := make([]Session, callers)
	for i := range callers {
		opening.Go(func() {
			var err error
			if opened[i], err = r.host.Open(r.Context(), s.ID()); err != nil {
				r.Error(err)
			}
		})
	}
	opening.Wait()
	if r.Failed() {
		return
	}
	t := r.prompt(opened[0], "b")
	r.complete(t)
	for i, o := range opened {
		if log := r.log(o); log[len(log)-1].Seq < uint64(len(r.events(t))) || o.ID() != s.ID() {
			r.Errorf("caller %d has %s with %d events", i, o.ID(), len(log))
		}
	}
}

func openUnknown(r *run) {
	_, err := r.host.Open(r.Context(), "nosuch")
	r.want("an unknown session", err, store.ErrNotFound)
}

func list(r *run) {
	ids := map[string]bool{}
	for i := range 3 {
		cfg := r.config(steps{say("x")})
		cfg.Metadata = map[string]string{"n": fmt.Sprint(i)}
		s := r.create(cfg)
		r.converse(s, fmt.Sprint("prompt ", i))
		ids[s.ID()] = true
	}
	for record, err := range r.host.List(r.Context(), store.Filter{}) {
		r.must(err)
		if !ids[record.ID] || record.Title != "prompt "+record.Metadata["n"] || record.LastSeq == 0 {
			r.Errorf("listed is %+v", record)
		}
		delete(ids, record.ID)
	}
	if len(ids) > 0 {
		r.Errorf("not listed are %v", ids)
	}
}

func destroy(r *run) {
	s := r.start(steps{write("f", "1\n")})
	r.converse(s, "a")
	r.must(s.Destroy(r.Context()))
	r.must(s.Destroy(r.Context()))
	if _, err := s.Prompt(r.Context(), "b"); err == nil || !errors.Is(err, session.ErrClosed) && !errors.Is(err, store.ErrNotFound) {
		r.Errorf("a prompt afterwards: %v", err)
	}
	_, err := r.host.Open(r.Context(), s.ID())
	r.want("the session", err, store.ErrNotFound)
	for record, err := range r.host.List(r.Context(), store.Filter{}) {
		r.must(err)
		if record.ID == s.ID() {
			r.Error("it is listed")
		}
	}
}
