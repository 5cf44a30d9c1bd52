package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"sync/atomic"
	"syscall"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionstore"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// storeOfRuns returns the store of this user's sessions. If it cannot be opened and the sandbox
// is not kept, it returns a store in memory.
func (a *app) storeOfRuns(ctx context.Context, keep bool) (st store.Store, closeStore func() error, stored bool, err error) {
	own, err := sessionstore.Open(ctx)
	switch {
	case err == nil:
		return own, own.Close, true, nil
	case keep || ctx.Err() != nil || errors.Is(err, syscall.ENOSPC) || errors.Is(err, store.ErrCorrupt): // what the agent does would be lost
		return nil, nil, false, err
	}
	fmt.Fprintf(a.err, "warn: the session is not stored, and cannot be gone on with later: %v\n", err)
	memory := store.NewMemory()
	memory.MaxLog = -1 // a reader that pauses loses nothing; MaxQuerySize bounds it
	return memory, func() error { return nil }, false, nil
}

// notOpened returns the error of a session that could not be opened.
func notOpened(ctx context.Context, err error) error {
	if ctx.Err() == nil && (errors.Is(err, environment.ErrConfig) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, errors.ErrUnsupported)) {
		return &exitError{code: exitUsage, err: err}
	}
	return err
}

// pointToSession prints, on a terminal, the command that continues the session of a run.
func (a *app) pointToSession(id string) {
	if a.err.Terminal {
		_ = a.err.Println(term.Dim("go on with 'envctl attach " + a.shortSession(id) + " PROMPT'"))
	}
}

// pointToLeft prints the command that continues the session of a sandbox that was removed, if
// the session is stored and has had a prompt.
func (a *app) pointToLeft(ctx context.Context, was location) error {
	if was.session == "" {
		return nil
	}
	left, session := false, ""
	err := a.withSessions(ctx, func(s *sqlite.Store) error {
		r, err := was.record(ctx, s, was.id)
		left, session = err == nil && r.LastSeq > 0, r.ID
		return nil
	})
	if err != nil || !left {
		return nil // the sandbox has ended, whatever is known of its session
	}
	return a.err.Row(term.Dim("its session stays: go on with 'envctl attach " + a.shortSession(session) + " PROMPT'"))
}

// overrideStored overrides a stored configuration with the flags and the file.
func (t *target) overrideStored(stored *environment.Config, given environment.Config) error {
	if typ := given.Sandbox.Type; typ != "" && given.Sandbox.Word() != stored.Sandbox.Word() {
		return usagef("the session is of the sandbox %q; leave --sandbox out, or move a kept sandbox with 'envctl move'", stored.Sandbox.Word())
	}
	if given.Agent.Name == "" {
		given.Agent.Name = stored.Agent.Name
	} else if given.Agent.Name != stored.Agent.Name {
		stored.Agent = environment.Agent{}
	}
	for _, part := range []struct{ from, to any }{
		{given.Agent, &stored.Agent}, {given.Profile, &stored.Profile}, {given.Models, &stored.Models}, {given.Budget, &stored.Budget}, {given.Delegation, &stored.Delegation},
	} {
		data, err := json.Marshal(part.from) // unset fields are left out
		if err == nil {
			err = json.Unmarshal(data, part.to)
		}
		if err != nil {
			return err
		}
	}
	stored.Agent.Env, stored.Budget.Ask = given.Agent.Env, given.Budget.Ask
	if !given.Permissions.IsZero() {
		stored.Permissions = given.Permissions
	}
	stored.OnPermission, stored.PermissionTimeout = given.OnPermission, given.PermissionTimeout
	stored.Logger, stored.Raw = given.Logger, given.Raw
	stored.Record, stored.Replay = given.Record, given.Replay
	if c := given.Coordinator; !c.IsZero() { // as a whole: a key may take the place of tokens
		c.SessionID = cmp.Or(c.SessionID, stored.Coordinator.SessionID)
		stored.Coordinator = c
	}
	if t.config != "" && given.Credentials != nil {
		stored.Credentials = given.Credentials
		return nil
	}
	for name, c := range stored.Credentials {
		if _, inside := given.Agent.Env[c.Env]; inside {
			delete(stored.Credentials, name) // the agent has its own value
		}
	}
	for name, c := range given.Credentials {
		if _, known := stored.Credentials[name]; known {
			continue
		}
		if stored.Credentials == nil {
			stored.Credentials = map[string]environment.Credential{}
		}
		stored.Credentials[name] = c
	}
	return nil
}

// resumeSession continues a stored session with the prompts. Without prompts it prints the running query,
// or the last one.
func (v *view) resumeSession(ctx context.Context, state session.State, cfg session.Config, prompts []string) (err error) {
	if len(prompts) == 0 && state.Query == nil && len(state.Queued) == 0 {
		return v.last(ctx, allOf(ctx, cfg.Store, state.ID), state)
	}
	var made atomic.Pointer[environment.Environment]
	cfg.Create = func(ctx context.Context, cfg environment.Config) (*environment.Environment, error) {
		env, err := environment.Create(ctx, cfg)
		if err == nil {
			made.Store(env)
			v.answer.inside(env, cfg)
		}
		return env, err
	}
	s, err := session.Open(ctx, cfg)
	if err != nil {
		return notOpened(ctx, err)
	}
	defer func() { err = errors.Join(err, v.app.closeSession(ctx, s, made.Load())) }()
	turns := s.Turns()
	if len(turns) == 0 && len(prompts) == 0 {
		return v.last(ctx, allOf(ctx, cfg.Store, state.ID), state)
	}
	pending := make([]query, len(turns))
	for i, turn := range turns {
		pending[i] = turn
	}
	return v.goOn(ctx, logOf(s, cfg.Store), pending, prompts, "attach "+v.app.shortSession(state.ID))
}

// closeSession closes a session. env is the sandbox that ends with the session; it may be nil.
// At a second interrupt closeSession closes env, because the session would wait for the agent
// and store the workspace.
func (a *app) closeSession(ctx context.Context, s *session.AgentSession, env *environment.Environment) error {
	if env == nil {
		return s.Close()
	}
	patient, stop := a.unhurried(ctx)
	end := context.AfterFunc(patient, func() { _ = env.Close() }) // the session reports the error
	err := s.Close()
	end()
	stop()
	return err
}

// lookAt prints the events of the last query in a sandbox that is not kept. The query belongs to the
// program that began it.
func (v *view) lookAt(ctx context.Context, st store.Store, state session.State, at location) error {
	err := v.last(ctx, allOf(ctx, st, state.ID), state)
	switch {
	case err != nil || state.Query == nil:
	case at.inUse:
		fmt.Fprintln(v.app.err, "so far: its program goes on with the query")
	default:
		err = fmt.Errorf("the program of the query has died, and the query with it; give a prompt to go on, until the grace of the sandbox is over: 'envctl attach %s PROMPT'", at.id)
	}
	return err
}

// allOf returns the events of a stored session.
func allOf(ctx context.Context, st store.Store, id string) func() iter.Seq2[runnerscripts.Event, error] {
	return func() iter.Seq2[runnerscripts.Event, error] { return st.Events(ctx, id, 1) }
}

// last prints the events of a session's last query; after 'envctl rewind', of the checkpoint's
// query.
func (v *view) last(ctx context.Context, events func() iter.Seq2[runnerscripts.Event, error], state session.State) error {
	id, rewound := "", false
	for _, c := range state.Checkpoints {
		if c.Number == state.Checkpoint {
			id, rewound = c.QueryID, c.Number != len(state.Checkpoints)
		}
	}
	for ev, err := range events() {
		if err != nil {
			return err
		}
		if !rewound && (ev.Type == runnerscripts.TypeQueryStarted || ev.Type == runnerscripts.TypeQueryQueued) {
			id = ev.QueryID
		}
	}
	if id == "" {
		return usagef("no query has been begun in the session %s that could be shown; give a prompt", v.app.shortSession(state.ID))
	}
	return v.print(ctx, ofQuery(events(), id))
}

// ofQuery returns the events from a query's first to its last, without those of other queries,
// followed by the query's error if it failed.
func ofQuery(events iter.Seq2[runnerscripts.Event, error], id string) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		begun := false
		for ev, err := range events {
			begun = begun || ev.QueryID == id
			if err == nil && (!begun || ev.QueryID != "" && ev.QueryID != id) {
				continue
			}
			if !yield(ev, err) || err != nil {
				return
			}
			if ev.QueryID != id || !ev.Type.EndsQuery() {
				continue
			}
			if f, failed := ev.Value().(*runnerscripts.QueryFailed); failed {
				yield(runnerscripts.Event{}, &environment.QueryError{QueryID: id, Failure: *f})
			}
			return
		}
	}
}
