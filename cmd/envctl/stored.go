package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionstore"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
)

// storeOfRuns returns the store of this user's sessions. Where there can be none, a run whose
// sandbox does not stay goes on without.
func (a *app) storeOfRuns(ctx context.Context, keep bool) (store.Store, func() error, error) {
	st, err := sessionstore.Open(ctx)
	switch {
	case err == nil:
		return st, st.Close, nil
	case keep || ctx.Err() != nil:
		return nil, nil, err
	}
	fmt.Fprintf(a.err, "warn: the session is not stored, and nobody can go on with it later: %v\n", err)
	return store.NewMemory(), func() error { return nil }, nil
}

// printedStore prints the events that it has stored.
type printedStore struct {
	store.Store
	print func(runnerscripts.Event) error
}

// Append implements store.Store.
func (p printedStore) Append(ctx context.Context, id string, events ...runnerscripts.Event) error {
	if err := p.Store.Append(ctx, id, events...); err != nil {
		return err
	}
	for _, ev := range events {
		if err := p.print(ev); err != nil {
			return err
		}
	}
	return nil
}

// pointToSession says on a terminal how to go on with the session of a run.
func (a *app) pointToSession(id string) {
	if a.err.terminal {
		_ = a.err.println(dim("go on with 'envctl attach " + a.shortSession(id) + " PROMPT'"))
	}
}

// resume looks for the stored session of an ID, or of a sandbox that was found and that
// belongs to the session still, and calls use with it. It reports whether there is one.
func resume(ctx context.Context, id string, found *location, use func(store.Store, store.Record, session.Config) error) (_ bool, err error) {
	st, err := sessionstore.OpenExisting(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	var rec store.Record
	if found == nil {
		rec, err = findSession(ctx, st, id)
	} else {
		rec, err = st.Load(ctx, found.session)
	}
	if errors.Is(err, store.ErrNotFound) || err == nil && found != nil && rec.Sandbox.ID != found.id {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	cfg, err := session.Stored(ctx, st, rec.ID)
	if err != nil || found != nil && !cfg.Environment.Sandbox.Keep {
		return false, err
	}
	return true, use(st, rec, cfg)
}

// over puts what the flags and the file say over a stored configuration.
func over(stored *environment.Config, given environment.Config) {
	if given.Agent.Name != "" && (given.Agent.Name != stored.Agent.Name || given.Agent.Command != nil || given.Agent.Config != nil) {
		stored.Agent = given.Agent
	}
	stored.Agent.Env = given.Agent.Env
	stored.Agent.Model = cmp.Or(given.Agent.Model, stored.Agent.Model)
	stored.Agent.PermissionMode = cmp.Or(given.Agent.PermissionMode, stored.Agent.PermissionMode)
	stored.OnPermission, stored.PermissionTimeout = given.OnPermission, given.PermissionTimeout
	stored.Logger, stored.Raw = given.Logger, given.Raw
	stored.Record, stored.Replay = given.Record, given.Replay
	stored.Budget.Ask = stored.Budget.Ask || given.Budget.Ask
	if len(given.Credentials) > 0 {
		stored.Credentials = given.Credentials
	}
}

// goOn goes on with a stored session. Without prompts it shows what happens there.
func (w *attachment) goOn(ctx context.Context, rec store.Record, cfg session.Config, prompts []string) (err error) {
	if len(prompts) == 0 && rec.Status != "running" {
		return w.last(ctx, cfg.Store, rec)
	}
	s, err := session.Open(ctx, cfg)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	turns := s.Turns()
	if len(turns) == 0 && len(prompts) == 0 {
		return w.last(ctx, cfg.Store, rec)
	}
	for _, turn := range turns {
		if err := w.print(ctx, whole(ctx, turn)); err != nil {
			if ctx.Err() != nil {
				fmt.Fprintf(w.app.err, "the query goes on: follow it with 'envctl attach %s'\n", w.app.shortSession(rec.ID))
			}
			return err
		}
	}
	for _, prompt := range prompts {
		turn, err := s.Prompt(ctx, prompt)
		if err == nil {
			err = w.turn(ctx, s, turn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// turn prints a query to its end. That of ctx interrupts it.
func (w *attachment) turn(ctx context.Context, s *session.AgentSession, turn *session.Turn) error {
	patient, stop := w.app.unhurried(ctx)
	defer stop()
	interrupted := make(chan struct{})
	after := context.AfterFunc(ctx, func() { defer close(interrupted); w.app.interrupt(ctx, s, turn) })
	err := w.print(patient, whole(patient, turn))
	if !after() {
		<-interrupted
		err = errors.Join(ctx.Err(), err)
	}
	return err
}

// whole are the events of a query, and the error that it ends with.
func whole(ctx context.Context, turn *session.Turn) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		for ev, err := range turn.Events(ctx) {
			if !yield(ev, err) {
				return
			}
		}
		if _, err := turn.Wait(ctx); err != nil {
			yield(runnerscripts.Event{}, err)
		}
	}
}

// last prints what happened in the last query of a session.
func (w *attachment) last(ctx context.Context, st store.Store, rec store.Record) error {
	id := ""
	for ev, err := range st.Events(ctx, rec.ID, 1) {
		if err != nil {
			return err
		}
		if ev.Type == runnerscripts.TypeQueryStarted {
			id = ev.QueryID
		}
	}
	if id == "" {
		return usagef("no query has been begun in the session %s that could be shown; give a prompt", w.app.shortSession(rec.ID))
	}
	return w.print(ctx, func(yield func(runnerscripts.Event, error) bool) {
		var failed error
		for ev, err := range st.Events(ctx, rec.ID, 1) {
			if err == nil && ev.QueryID != id {
				continue
			}
			if !yield(ev, err) || err != nil {
				return
			}
			if f, bad := runnerscripts.Payload[runnerscripts.QueryFailed](ev); bad == nil && ev.Type == runnerscripts.TypeQueryFailed {
				failed = &environment.QueryError{QueryID: id, Failure: f}
			}
		}
		if failed != nil {
			yield(runnerscripts.Event{}, failed)
		}
	})
}
