package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session"
	"github.com/agentenv-dev/agentenv/session/remote"
	"github.com/agentenv-dev/agentenv/session/store"
)

// This file brings workspaces from this machine to a server and back. What a workspace begins with is placed in a local sandbox, in
// which nothing runs; later it gets what has changed on the server. So what comes of the changes is as for a sandbox here.

// isHere reports whether sources are of this machine.
func isHere(sources []environment.Source) bool {
	for _, src := range sources {
		if src.Folder != nil || src.Tar != nil || src.Git != nil && repositoryIsHere(src.Git.URL) {
			return true
		}
	}
	return false
}

// placeHere returns a local sandbox with the workspace of a configuration.
func (a *app) placeHere(ctx context.Context, cfg environment.Config) (*environment.Environment, error) {
	return environment.Create(ctx, environment.Config{
		Sandbox: environment.Sandbox{Type: "local"}, Workspace: cfg.Workspace, IgnoreChanges: cfg.IgnoreChanges, Progress: cfg.Progress,
	})
}

// checkpoints are the files of a session.
type checkpoints interface {
	Changes(ctx context.Context, from, to int) ([]environment.Change, error)
	ReadWorkspace(ctx context.Context, w io.Writer, from, to int) error
}

// storedFiles are those of a session of this machine.
type storedFiles struct {
	store store.Store
	id    string
}

func (s storedFiles) Changes(ctx context.Context, from, to int) ([]environment.Change, error) {
	return session.ReadChanges(ctx, s.store, s.id, from, to)
}

func (s storedFiles) ReadWorkspace(ctx context.Context, w io.Writer, from, to int) error {
	return session.ReadWorkspace(ctx, s.store, s.id, w, from, to)
}

// withFiles returns a local sandbox with the files of the last checkpoint of a session; changes count from the first one.
func (a *app) withFiles(ctx context.Context, ignore []string, of checkpoints) (env *environment.Environment, err error) {
	first := func(w io.Writer) error { return of.ReadWorkspace(ctx, w, 0, 1) }
	err = archive.Pipe(first, func(r io.Reader) (err error) {
		env, err = a.placeHere(ctx, environment.Config{Workspace: []environment.Source{{Tar: &environment.Tar{Reader: r}}}, IgnoreChanges: ignore})
		return err
	})
	if err == nil {
		err = bring(ctx, of, env)
	}
	if err != nil && env != nil {
		return nil, errors.Join(err, env.Close())
	}
	return env, err
}

// upload makes the files of a local sandbox those of a new session.
func (a *app) upload(ctx context.Context, from *environment.Environment, to *remote.Session) (err error) {
	defer a.status.Busy("sending the workspace to the server")()
	r := &repacking{pack: func() (io.ReadCloser, error) {
		return primitives.Pack(ctx, from.Primitive(), ".", primitives.PackOptions{})
	}}
	defer func() { err = errors.Join(err, r.close()) }()
	return to.WriteWorkspace(ctx, r)
}

// repacking is an archive that can be read again from its beginning, because it is packed again.
type repacking struct {
	pack func() (io.ReadCloser, error)
	from io.ReadCloser // nil before the first Read
}

// Read implements io.Reader.
func (r *repacking) Read(p []byte) (int, error) {
	if r.from == nil {
		var err error
		if r.from, err = r.pack(); err != nil {
			return 0, err
		}
	}
	return r.from.Read(p)
}

// Seek implements io.Seeker. It only goes to the beginning.
func (r *repacking) Seek(offset int64, _ int) (int64, error) {
	if offset != 0 {
		return 0, fs.ErrInvalid
	}
	return 0, r.close()
}

func (r *repacking) close() error {
	if r.from == nil {
		return nil
	}
	err := r.from.Close()
	r.from = nil
	return err
}

// bring makes the changes of a session since its first checkpoint in a local sandbox that has the files of that.
func bring(ctx context.Context, from checkpoints, to *environment.Environment) error {
	changes, err := from.Changes(ctx, 1, 0)
	if err != nil || len(changes) == 0 {
		return err
	}
	files := to.Primitive()
	for _, c := range changes {
		err := files.Remove(ctx, c.Path, true)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, primitives.ErrNotDirectory) {
			return err
		}
	}
	return archive.Pipe(
		func(w io.Writer) error { return from.ReadWorkspace(ctx, w, 1, 0) },
		func(r io.Reader) error { return primitives.Unpack(ctx, files, ".", r) },
	)
}

// servedOutcome has the changes of a session of a server since its first checkpoint.
type servedOutcome struct{ *remote.Session }

func (s servedOutcome) Changes(ctx context.Context) ([]environment.Change, error) {
	return s.Session.Changes(ctx, 1, 0)
}

func (s servedOutcome) Patch(ctx context.Context, w io.Writer) error {
	return s.Session.Patch(ctx, w, 1, 0)
}

// Ignored implements outcome. The server does not say it.
func (servedOutcome) Ignored() int { return 0 }

// bringFromServer exports what has changed in the workspace of a session of the server, as bringOut does. here has what the
// workspace began with; nil if that came from elsewhere.
func (f *runFlags) bringFromServer(ctx context.Context, s *remote.Session, here *environment.Environment, failed error) error {
	if state, err := s.State(ctx); err != nil || state.Checkpoint == 0 { // there was no sandbox
		return err
	}
	switch {
	case here == nil && f.patch != "":
		return f.writePatch(ctx, servedOutcome{s})
	case here == nil && f.keep:
		return nil
	case here == nil:
		return f.savePatch(ctx, servedOutcome{s})
	}
	done := f.app.status.Busy("getting the changes from the server")
	err := bring(ctx, s, here)
	if done(); err != nil {
		return err
	}
	return f.bringOut(ctx, here, failed)
}

// withWorkspace adds the workspace of this machine to a configuration that a server has checked.
func withWorkspace(config json.RawMessage, own environment.Config) (json.RawMessage, error) {
	data, err := environment.FormatSafely(own)
	if err != nil {
		return nil, err
	}
	var all, here map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(config, &all), json.Unmarshal(data, &here)); err != nil {
		return nil, err
	}
	all["workspace"] = here["workspace"]
	return json.Marshal(all)
}
