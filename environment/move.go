package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"reflect"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Move makes a sandbox as to describes it, of another type if need be, with the
// workspace and the conversation of this environment, and ends this one. The
// SessionID stays, and the agent remembers; [Environment.Changes] count from where
// this one's do. What runs in this sandbox ends, and of its files outside the
// workspace nothing comes along.
//
// Of to count the Sandbox and what is about this program, such as Keep and
// Progress. What is about the conversation is taken over where to leaves it out:
// the Agent, the Profile, Env and IgnoreChanges. A Workspace or another SessionID
// is [ErrConfig].
//
// A sandbox that was made by the caller (see [New]) stays. When Move fails, this
// environment is as it was, except with an environment returned too: then this one
// could not be ended. Errors: [ErrBusy] while a query runs, and those of [Create].
func (e *Environment) Move(ctx context.Context, to Config) (*Environment, error) {
	moved, err := e.copyTo(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("move: %w", err)
	}
	end := e.discard
	if e.owner.release == nil {
		end = func(context.Context) error { return e.Close() }
	}
	if err := end(ctx); err != nil {
		return moved, fmt.Errorf("move: end the sandbox %s: %w", e.ID(), err)
	}
	return moved, nil
}

// copyTo makes the other sandbox.
func (e *Environment) copyTo(ctx context.Context, to Config) (_ *Environment, err error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	select {
	case e.busy <- struct{}{}:
		defer func() { <-e.busy }()
	default:
		return nil, ErrBusy
	}
	if to, err = e.moving(to); err != nil {
		return nil, err
	}
	start, err := e.memory(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the conversation: %w", err)
	}
	packed, err := primitives.Pack(ctx, e.prim, ".", primitives.PackOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the workspace: %w", err)
	}
	to.Workspace = []Source{{Tar: &Tar{Reader: packed}}}
	moved, err := Create(ctx, to)
	if err = errors.Join(err, packed.Close()); err != nil {
		if moved != nil {
			err = errors.Join(err, moved.discard(ctx))
		}
		return nil, err
	}
	moved.cfg.Workspace = nil
	err = errors.Join(moved.takeOverBaseline(ctx, e), moved.takeOverRecord(ctx, e))
	if err == nil && to.Agent.Name != "" {
		_, err = moved.setupSession(ctx, start)
	}
	if err != nil {
		return nil, errors.Join(err, moved.discard(ctx))
	}
	return moved, nil
}

// memory is what the agent is to remember in another sandbox.
func (e *Environment) memory(ctx context.Context) (Setup, error) {
	start, err := e.conversation(ctx)
	if err != nil || start.Transcript != nil || e.cfg.Agent.Name == "" {
		return start, err
	}
	// Somebody else may have talked to the agent of a sandbox that was kept.
	t, err := e.ReadTranscript(ctx)
	if err != nil || t.Main == "" && len(t.Subagents) == 0 {
		return start, err
	}
	start.Transcript = &t
	return start, nil
}

// moving fills in what is this environment's.
func (e *Environment) moving(to Config) (Config, error) {
	switch {
	case len(to.Workspace) > 0:
		return to, fmt.Errorf("%w: workspace: leave it out: the workspace moves", ErrConfig)
	case to.SessionID != "" && to.SessionID != e.cfg.SessionID:
		return to, fmt.Errorf("%w: session_id: leave it out: the conversation moves", ErrConfig)
	case to.Agent.Name != "" && to.Agent.Name != e.cfg.Agent.Name:
		return to, fmt.Errorf("%w: agent: leave it out: another agent does not know the conversation of %q", ErrConfig, e.cfg.Agent.Name)
	}
	to.SessionID = e.cfg.SessionID
	if to.Agent.Name == "" {
		to.Agent = e.session().Agent
	}
	if reflect.ValueOf(to.Profile).IsZero() {
		to.Profile = e.cfg.Profile
	}
	if to.Env == nil {
		to.Env = e.cfg.Env
	}
	if to.IgnoreChanges == nil {
		to.IgnoreChanges = e.cfg.IgnoreChanges
	}
	return to, nil
}

// takeOverBaseline has changes counted from where those of another environment are,
// if that knows it.
func (e *Environment) takeOverBaseline(ctx context.Context, from *Environment) error {
	if err := from.base.find(ctx); errors.Is(err, errors.ErrUnsupported) {
		return nil
	} else if err != nil {
		return err
	}
	return e.base.share(&from.base)
}

// takeOverRecord has the record of a kept sandbox say what the workspace was at the
// beginning of the sandbox before it, as far as that one has such a record.
func (e *Environment) takeOverRecord(ctx context.Context, from *Environment) (err error) {
	if !e.owner.kept {
		return nil
	}
	r, err := from.prim.Open(ctx, path.Join(from.prim.Paths().App, baselineFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = e.prim.WriteFile(ctx, path.Join(e.prim.Paths().App, baselineFile), r, private())
	return errors.Join(err, r.Close())
}
