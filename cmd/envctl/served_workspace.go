package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session/remote"
)

// This file brings workspaces from this machine to a server and back. What a workspace begins with is placed in a local sandbox, in
// which nothing runs; later it gets the files that the server has then. So what comes of the changes is as for a sandbox here.

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

// withFiles returns a local sandbox with the files of the last checkpoint of a session; changes count from the first one. read
// returns a function that writes those of a checkpoint, of the last one for zero, as an archive.
func (a *app) withFiles(ctx context.Context, ignore []string, read func(number int) func(io.Writer) error) (env *environment.Environment, err error) {
	err = archive.Pipe(read(1), func(r io.Reader) (err error) {
		env, err = a.placeHere(ctx, environment.Config{Workspace: []environment.Source{{Tar: &environment.Tar{Reader: r}}}, IgnoreChanges: ignore})
		return err
	})
	if err == nil {
		err = replaceFiles(ctx, env, read(0))
	}
	if err != nil && env != nil {
		return nil, errors.Join(err, env.Close())
	}
	return env, err
}

// upload makes the files of a local sandbox those of a new session.
func (a *app) upload(ctx context.Context, from *environment.Environment, to *remote.Session) error {
	defer a.status.Busy("sending the workspace to the server")()
	packed, err := primitives.Pack(ctx, from.Primitive(), ".", primitives.PackOptions{})
	if err != nil {
		return err
	}
	return errors.Join(to.WriteWorkspace(ctx, packed), packed.Close())
}

// download gives a local sandbox the files of the last checkpoint of a session.
func (a *app) download(ctx context.Context, from *remote.Session, to *environment.Environment) error {
	defer a.status.Busy("getting the workspace from the server")()
	return replaceFiles(ctx, to, func(w io.Writer) error { return from.ReadWorkspace(ctx, w, 0) })
}

// replaceFiles replaces all files of a local sandbox by those of an archive.
func replaceFiles(ctx context.Context, of *environment.Environment, pack func(io.Writer) error) error {
	files := of.Primitive()
	infos, err := files.List(ctx, ".", primitives.ListOptions{})
	for _, info := range infos {
		err = errors.Join(err, files.Remove(ctx, info.Path, true))
	}
	if err != nil {
		return err
	}
	return archive.Pipe(pack, func(r io.Reader) error { return primitives.Unpack(ctx, files, ".", r) })
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
	if err := f.app.download(ctx, s, here); err != nil {
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
