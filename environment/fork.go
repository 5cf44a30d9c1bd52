package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/environment/internal/query"
	"github.com/agentenv-dev/agentenv/environment/internal/script"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Fork creates n environments with copies of the sandbox as it is now: the same files, settings
// and conversation, each with its own SessionID. Later the copies change independently, and
// their [Environment.Changes] count from the same baseline as this one's. Processes of this
// sandbox continue here, and only here: a copy starts its agent with its first query, and the
// agent resumes the conversation.
//
// The copies belong to the caller. Closing one ends its sandbox, unless Sandbox.Keep is set. The
// copies outlive this environment. Fork creates all of them or none.
//
// Fork returns [ErrBusy] while a query runs, because a copy cannot continue a half-done query.
// Queries return ErrBusy while Fork runs. Other errors are those of primitives.Fork, such as
// errors.ErrUnsupported for a sandbox that cannot be copied.
func (e *Environment) Fork(ctx context.Context, n int) ([]*Environment, error) {
	ctx, leave, err := e.queries.Alone(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	start, err := e.conversation(ctx)
	if err != nil {
		return nil, fmt.Errorf("fork: read the conversation: %w", err)
	}
	made, err := primitives.Fork(ctx, e.prim, n)
	if err != nil {
		return nil, err
	}
	copies := make([]*Environment, 0, n)
	for i, p := range made {
		c, err := e.copyOn(ctx, p, start)
		if err == nil {
			copies = append(copies, c)
			continue
		}
		errs := []error{fmt.Errorf("fork: %w", err)}
		for _, p := range made[i:] {
			errs = append(errs, end(ctx, p))
		}
		for _, c := range copies {
			errs = append(errs, c.Terminate(ctx))
		}
		return nil, errors.Join(errs...)
	}
	return copies, nil
}

// conversation returns the Setup from which a copy's agent resumes the conversation.
func (e *Environment) conversation(ctx context.Context) (Setup, error) {
	prepared, first, err := e.isPrepared(ctx)
	if err != nil || !prepared && (first.Transcript != nil || !e.origin.placed || e.agent().Name == "") {
		return first, err
	}
	// Another program may have had the queries of a sandbox that this one has attached to.
	t, err := e.ReadTranscript(ctx)
	switch {
	case err != nil:
		return Setup{}, err
	case t.Main == "" && len(t.Subagents) == 0 && prepared:
		return Setup{}, nil
	case t.Main == "" && len(t.Subagents) == 0:
		return first, nil
	}
	return Setup{Transcript: &t}, nil
}

// copyOn creates an environment for a copy of the sandbox.
func (e *Environment) copyOn(ctx context.Context, p primitives.EnvironmentPrimitive, start Setup) (*Environment, error) {
	cfg := e.cfg
	cfg.SessionID, cfg.Workspace, cfg.Agent = uuid.NewString(), nil, e.queries.Request().Agent
	cfg.Coordinator.SessionID = "" // the copy does not speak for the session
	e.mu.Lock()
	cfg.Sandbox.AllowHosts = e.hosts
	e.mu.Unlock()
	from := origin{
		release: func() error { return end(ctx, p) },
		placed:  true, kept: e.origin.kept,
		folders: e.origin.folders, baseline: e.origin.baseline, unknown: e.origin.unknown,
	}
	if from.kept {
		from.release, from.log = p.Close, kept.NewLog(cfg.firstRecord(p, true))
	}
	c, err := prepare(ctx, p, cfg, from)
	if err != nil {
		return nil, err
	}
	c.first = start
	c.queries.Grace, c.queries.Margin, c.scripts.Probe, c.scripts.MaxLine = e.queries.Grace, e.queries.Margin, e.scripts.Probe, e.scripts.MaxLine
	if err := c.base.share(&e.base); err != nil {
		return nil, errors.Join(err, c.gate.Close(), c.base.close())
	}
	if from.kept {
		err := errors.Join(c.beginRecord(ctx), c.forgetQueries(ctx))
		if err == nil && start.Transcript != nil {
			// Another program may have the first query of a copy that stays, and has only what is in it.
			_, err = c.PrepareSession(ctx, start)
		}
		if err != nil {
			kept.Forget(cfg.Sandbox.Type, c.ID()) // the caller ends it
			return nil, errors.Join(err, c.gate.Close(), c.base.close())
		}
	}
	return c, nil
}

// forgetQueries removes the copied records of queries, which run only in the original.
func (e *Environment) forgetQueries(ctx context.Context) error {
	app := e.prim.Paths().App
	for _, name := range []string{script.QueriesDir, query.File} {
		err := e.prim.Remove(ctx, path.Join(app, name), true)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Snapshot stores the files of the sandbox, including the agent's memory, and returns the
// snapshot's ID. For Docker and Modal it is an image, for Spec.Image of new sandboxes: see
// docker.Provider.RemoveSnapshot and modal.Provider.RemoveSnapshot. A snapshot has no processes.
// While a query runs the error is [ErrBusy]; other errors are those of primitives.Snapshot.
func (e *Environment) Snapshot(ctx context.Context) (id string, err error) {
	ctx, leave, err := e.queries.Alone(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	return primitives.Snapshot(ctx, e.prim)
}

// Usage returns what the sandbox uses of its machine now. The error is errors.ErrUnsupported if
// the sandbox cannot report it.
func (e *Environment) Usage(ctx context.Context) (primitives.Usage, error) {
	ctx, leave, err := e.scripts.Enter(ctx)
	if err != nil {
		return primitives.Usage{}, err
	}
	defer leave()
	return primitives.ReadUsage(ctx, e.prim)
}
