package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/sessionstore"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/store"
	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

// withSession calls use, which changes nothing, with the session for id: the session with this
// ID, else the session of the sandbox with this ID or name or with the only ID that has this
// prefix, else the one that findSession finds. A prefix that also fits a session of another
// sandbox is an error. In this order, the name of a sandbox never means a session whose ID happens
// to start with it.
func (a *app) withSession(ctx context.Context, id string, use func(*sqlite.Store, store.Record) error) error {
	return a.inSession(ctx, sessionstore.OpenToRead, id, use)
}

// changeSession is withSession for a change of the store.
func (a *app) changeSession(ctx context.Context, id string, use func(*sqlite.Store, store.Record) error) error {
	return a.inSession(ctx, sessionstore.OpenExisting, id, use)
}

func (a *app) inSession(
	ctx context.Context, open func(context.Context) (*sqlite.Store, error), id string, use func(*sqlite.Store, store.Record) error,
) error {
	s, err := open(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return noSession(id)
	}
	if err != nil {
		return err
	}
	r, err := a.sessionOf(ctx, s, id)
	if err == nil {
		err = use(s, r)
	}
	return errors.Join(err, s.Close())
}

// sessionOf is withSession for a store that is open.
func (a *app) sessionOf(ctx context.Context, s store.Store, id string) (store.Record, error) {
	r, err := s.Load(ctx, id)
	if !errors.Is(err, store.ErrNotFound) {
		return r, err
	}
	at, missing := find(ctx, environment.Sandbox{}, id)
	if missing != nil {
		return findSession(ctx, s, id)
	}
	return at.record(ctx, s, id)
}

// record returns the session of the sandbox that word names.
func (l location) record(ctx context.Context, s store.Store, word string) (store.Record, error) {
	if err := l.alone(ctx, s, word); err != nil {
		return store.Record{}, err
	}
	r, err := store.Record{}, store.ErrNotFound
	if l.session != "" {
		r, err = s.Load(ctx, l.session)
	}
	if err == nil && r.Sandbox.ID != l.id { // the sandbox of a fork names the session that it was copied from
		if own, missing := findSession(ctx, s, l.id); missing == nil && own.Sandbox.ID == l.id {
			return own, nil
		}
	}
	if errors.Is(err, store.ErrNotFound) {
		return r, fmt.Errorf("%w of the sandbox %s: it was removed, or the sandbox is that of another user or program", store.ErrNotFound, l.id)
	}
	return r, err
}

func noSession(id string) error {
	return fmt.Errorf("%w %q; 'envctl sessions ls' shows those there are", store.ErrNotFound, id)
}

// alone fails if word is only a prefix of the sandbox's ID and also fits a session of another
// sandbox.
func (l location) alone(ctx context.Context, s store.Store, word string) error {
	if l.is(word) {
		return nil
	}
	r, err := findSession(ctx, s, word)
	if errors.Is(err, store.ErrNotFound) || err == nil && r.ID == l.session {
		return nil
	}
	if err == nil {
		err = usagef("%q fits the sandbox %s and the session %s; give more of the ID", word, l.id, r.ID)
	}
	return err
}

// findSession returns the session that id means: its ID, its last name, its ID at a coordinator, or
// the ID of one of its sandboxes. Else id is the beginning of such an ID, of one session only.
func findSession(ctx context.Context, s store.Store, id string) (store.Record, error) {
	r, err := s.Load(ctx, id)
	if !errors.Is(err, store.ErrNotFound) {
		return r, err
	}
	list, err := records(ctx, s, store.Filter{})
	if err != nil {
		return store.Record{}, err
	}
	fit := fitting(list, id)
	switch len(fit) {
	case 0:
		return store.Record{}, noSession(id)
	case 1:
		return s.Load(ctx, fit[0])
	}
	return store.Record{}, usagef("%q fits %d sessions: %s; give more of the ID", id, len(fit), strings.Join(fit[:min(len(fit), 5)], ", "))
}

// fitting returns the IDs of the sessions that a word means: of the one with this ID, the latest with this name or this ID at a
// coordinator, or the one of the sandbox with this ID; else of those whose ID, or that of a sandbox, begins with it. The list has the latest first.
func fitting(list []store.Record, word string) (fit []string) {
	if word == "" {
		return nil
	}
	if slices.ContainsFunc(list, func(r store.Record) bool { return r.ID == word }) {
		return []string{word}
	}
	begins := func(had string) bool { return strings.HasPrefix(had, word) || strings.HasPrefix(had, idPrefix+word) }
	for _, r := range list {
		if nameOf(r) == word || r.Metadata[sessionKey] == word || slices.Contains(r.Sandboxes, word) || slices.Contains(r.Sandboxes, idPrefix+word) {
			return []string{r.ID}
		}
		if strings.HasPrefix(r.ID, word) || slices.ContainsFunc(r.Sandboxes, begins) {
			fit = append(fit, r.ID)
		}
	}
	return fit
}

// withStoredSession calls use with the stored session for id, and reports whether there is one. If
// found is not nil, it is the session of that sandbox, if the session still has the sandbox.
func withStoredSession(ctx context.Context, id string, found *location, use func(store.Store, session.State, session.Config) error) (_ bool, err error) {
	st, err := sessionstore.OpenExisting(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	lookUp := findSession
	if found != nil {
		lookUp = found.record
	}
	rec, err := lookUp(ctx, st, id)
	if err != nil {
		return false, unlessMissing(err)
	}
	state, err := session.ReadState(ctx, st, rec.ID)
	if err != nil || found != nil && state.Environment.ID != found.id && rec.Sandbox.ID != found.id {
		return false, unlessMissing(err)
	}
	cfg, err := session.Stored(ctx, st, rec.ID)
	if err != nil {
		return false, err
	}
	return true, use(st, state, cfg)
}

func unlessMissing(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// nameOf returns the name that a session gave its last sandbox; empty for none.
func nameOf(r store.Record) string {
	var config struct {
		Environment struct {
			Name string `json:"name"`
		} `json:"environment"`
	}
	if json.Unmarshal(r.Config, &config) != nil {
		return ""
	}
	return config.Environment.Name
}

// endedError is the error for a session whose sandbox is needed and has ended.
type endedError struct {
	session string
	record  store.Record
}

func (e *endedError) Error() string {
	return fmt.Sprintf("the sandbox of the session %s has ended; the next prompt makes another one: 'envctl attach %[1]s PROMPT'", e.session)
}

// locateSession is locate for the ID of a sandbox or of a session. If the sandbox has ended, the
// error is an [*endedError].
func (t *target) locateSession(ctx context.Context, id string) (environment.Config, location, error) {
	cfg, found, err := t.locate(ctx, id)
	if !errors.Is(err, errNoSandbox) {
		return cfg, found, err
	}
	missing := err
	err = t.app.withSession(ctx, id, func(_ *sqlite.Store, r store.Record) (err error) {
		if r.Sandbox.ID != "" {
			cfg, found, err = t.locate(ctx, r.Sandbox.ID)
		}
		if r.Sandbox.ID == "" || errors.Is(err, errNoSandbox) {
			err = &endedError{r.ID, r}
		}
		return err
	})
	_, wrong := errors.AsType[*exitError](err)
	_, ended := errors.AsType[*endedError](err)
	switch {
	case errors.Is(err, store.ErrNotFound):
		err = missing
	case err != nil && !wrong && !ended:
		err = errors.Join(missing, err) // the store cannot be read
	}
	return cfg, found, err
}

// attachSession is attach for the ID of a sandbox or of a session, see locateSession.
func (t *target) attachSession(ctx context.Context, id string) (*environment.Environment, error) {
	cfg, found, err := t.locateSession(ctx, id)
	if err != nil {
		return nil, err
	}
	return environment.Attach(ctx, cfg, found.id)
}
