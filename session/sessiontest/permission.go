package sessiontest

import (
	"io/fs"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
)

func respondBoth(r *run) {
	s := r.start(steps{ask(write("yes", "1\n"))}, steps{ask(write("no", "1\n"))})
	t := r.prompt(s, "a")
	req := r.asked(s)
	if pending := r.state(s).Pending; len(pending) != 1 || pending[0].ID != req.ID {
		r.Errorf("%+v are pending, want %s", pending, req.ID)
	}
	r.must(s.Respond(r.Context(), req.ID, req.Allow()))
	r.complete(t)
	t = r.prompt(s, "b")
	for ev, err := range t.Events(r.Context()) {
		r.must(err)
		if ev.Type != runnerscripts.TypePermissionRequest {
			continue
		}
		second, err := runnerscripts.Payload[runnerscripts.PermissionRequest](ev)
		r.must(err)
		r.must(s.Respond(r.Context(), second.ID, second.Reject("not this one")))
	}
	r.complete(t)
	if yes, no := r.content(s, "yes"), r.content(s, "no"); yes != "1\n" || no != "none" {
		r.Errorf("the allowed file is %q, the rejected one %q", yes, no)
	}
	if pending := r.state(s).Pending; len(pending) != 0 {
		r.Errorf("afterwards %+v are pending", pending)
	}
}

func respondFirst(r *run) {
	s := r.start(steps{ask(write("f", "1\n"))})
	t := r.prompt(s, "a")
	req := r.asked(s)
	r.must(s.Respond(r.Context(), req.ID, req.Reject("no")))
	r.want("a second answer", s.Respond(r.Context(), req.ID, req.Allow()), session.ErrNotPending)
	r.complete(t)
	if got := r.content(s, "f"); got != "none" {
		r.Errorf("the rejected file is %q", got)
	}
	r.want("an answer after the end", s.Respond(r.Context(), req.ID, req.Allow()), session.ErrNotPending)
}

func respondNothing(r *run) {
	s := r.start(steps{ask(write("asked", ""))})
	d := runnerscripts.PermissionDecision{Kind: runnerscripts.AllowOnce}
	r.want("before the first prompt", s.Respond(r.Context(), "nothing", d), session.ErrNotPending)
	t := r.prompt(s, "a")
	req := r.asked(s)
	r.want("an unknown request", s.Respond(r.Context(), "nothing", d), session.ErrNotPending)
	r.must(s.Respond(r.Context(), req.ID, req.Allow()))
	r.complete(t)
}

func respondInvalid(r *run) {
	s := r.start(steps{ask(write("f", "1\n"))})
	t := r.prompt(s, "a")
	req := r.asked(s)
	for name, d := range map[string]runnerscripts.PermissionDecision{
		"neither option nor kind": {},
		"an unknown option":       {OptionID: "nosuch"},
		"an unknown kind":         {Kind: "perhaps"},
	} {
		r.want(name, s.Respond(r.Context(), req.ID, d), fs.ErrInvalid)
	}
	r.must(s.Respond(r.Context(), req.ID, req.Allow()))
	r.complete(t)
	if got := r.content(s, "f"); got != "1\n" {
		r.Errorf("the file is %q", got)
	}
}

func respondInterrupted(r *run) {
	s := r.start(steps{ask(write("f", "1\n"))})
	t := r.prompt(s, "a")
	req := r.asked(s)
	r.must(t.Interrupt(r.Context()))
	if done := r.complete(t); done.StopReason != runnerscripts.StopCancelled {
		r.Errorf("it stopped because of %q", done.StopReason)
	}
	r.want("an answer afterwards", s.Respond(r.Context(), req.ID, req.Allow()), session.ErrNotPending)
	if n := count(r.events(t), runnerscripts.TypePermissionResolved); n != 1 {
		r.Errorf("%d events end the request", n)
	}
	if got := r.content(s, "f"); got != "none" {
		r.Errorf("the file is %q", got)
	}
}
