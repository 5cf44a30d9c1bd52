package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/remote"
	"github.com/agentenv-dev/agentenv/session/store"
)

// This file has what log, rewind, fork, diff, compare, answer and sessions show do with --server.

func (f *checkpointFlags) listServed(ctx context.Context, id string) error {
	s, err := f.app.servedSession(ctx, id)
	if err != nil {
		return err
	}
	state, err := s.State(ctx)
	if err != nil {
		return err
	}
	return f.list(state)
}

func (f *checkpointFlags) rewindServed(ctx context.Context, to point) error {
	s, err := f.app.servedSession(ctx, to.id)
	if err == nil {
		err = s.Rewind(ctx, to.number)
	}
	if err != nil {
		return err
	}
	state, err := s.State(ctx)
	if err != nil {
		return err
	}
	return f.app.err.Row(term.Plain(rewound(state) + "; go on with 'envctl " + f.app.serverFlag + "attach " + f.app.shortSession(s.ID()) + " PROMPT'"))
}

func (f *checkpointFlags) forkServed(ctx context.Context, from point) error {
	if f.named != "" {
		return usagef("--agent is for sessions of this machine; the copies on the server have the agent of the session")
	}
	s, err := f.app.servedSession(ctx, from.id)
	if err != nil {
		return err
	}
	var made []*remote.Session
	if from.number == 0 {
		made, err = s.Fork(ctx, f.copies)
	} else {
		made, err = s.ForkFrom(ctx, from.number, f.copies)
	}
	for _, c := range made {
		err = errors.Join(err, f.app.out.Row(term.Plain(f.app.shortSession(c.ID()))))
	}
	return err
}

// diffServed prints what has changed in a session of the server from one checkpoint to another; without the first, up to now.
func (f *diffFlags) diffServed(ctx context.Context, from point, to int) (err error) {
	s, err := f.app.servedSession(ctx, from.id)
	if errors.Is(err, store.ErrNotFound) && from.number == 0 { // it may be a sandbox
		f.app.sandboxServer = f.app.server
		env, aerr := f.attach(ctx, from.id)
		if errors.Is(aerr, errNoSandbox) {
			return err
		}
		if aerr != nil {
			return aerr
		}
		defer func() { err = errors.Join(err, env.Close()) }()
		return f.diffNow(ctx, env)
	}
	if err != nil {
		return err
	}
	if from.number == 0 {
		from.number = 1
		if _, err := s.Sync(ctx); err != nil {
			return err
		}
	}
	if !f.stat && !f.asJSON {
		return s.Patch(ctx, f.app.out, from.number, to)
	}
	changes, err := s.Changes(ctx, from.number, to)
	if err != nil {
		return err
	}
	return f.print(changes)
}

func (a *app) compareServed(ctx context.Context, id string) (comparison, error) {
	s, err := a.servedSession(ctx, id)
	if err != nil {
		return comparison{}, err
	}
	state, err := s.State(ctx)
	if err != nil {
		return comparison{}, err
	}
	status := "idle"
	if state.Query != nil {
		status = queryRunning
	}
	return compareState(s.ID(), status, state, changesOf{
		func() ([]environment.Change, error) { return s.Changes(ctx, 1, 0) },
		func(w io.Writer) error { return s.Patch(ctx, w, 1, 0) },
	})
}

// answerServed answers what the agent of a session of the server asks.
func (f *answerFlags) answerServed(ctx context.Context, id string, answer []string) error {
	s, err := f.app.servedSession(ctx, id)
	if err != nil {
		return err
	}
	state, err := s.State(ctx)
	if err != nil {
		return err
	}
	var waiting []environment.Waiting
	for _, req := range state.Pending {
		if f.request == "" || req.ID == f.request {
			waiting = append(waiting, environment.Waiting{ID: req.ID, Title: req.ToolCall.Title, Request: &req})
		}
	}
	switch {
	case len(waiting) == 0:
		return fmt.Errorf("no question waits for an answer in %s", f.app.shortSession(s.ID()))
	case len(answer) == 0:
		return f.show(waiting, f.app.shortSession(s.ID()), state.Environment.Workspace)
	}
	d, err := answerTo(*waiting[0].Request, answer)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	if err := s.Respond(ctx, waiting[0].ID, d); errors.Is(err, session.ErrNotPending) {
		return fmt.Errorf("too late: the question %q was answered already, or withdrawn", waiting[0].Title)
	} else if err != nil {
		return err
	}
	return f.app.err.Row(term.Plain(answered(d, waiting[0])))
}

// showServed returns what the server knows of a session.
func (a *app) showServed(ctx context.Context, id string) (listedSession, error) {
	s, err := a.servedSession(ctx, id)
	if err != nil {
		return listedSession{}, err
	}
	_, records, err := a.servedRecords(ctx, store.Filter{})
	i := slices.IndexFunc(records, func(r store.Record) bool { return r.ID == s.ID() })
	if err != nil || i < 0 {
		return listedSession{}, errors.Join(err, store.ErrNotFound)
	}
	return listedSession{Record: records[i]}, nil
}
