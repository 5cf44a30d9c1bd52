package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/google/uuid"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
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
	ctx, leave, err := e.enterAlone(ctx)
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
	if err != nil || !prepared && (first.Transcript != nil || !e.owner.placed || e.session().Agent.Name == "") {
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
	cfg.SessionID, cfg.Workspace, cfg.Agent = uuid.NewString(), nil, e.session().Agent
	e.mu.Lock()
	cfg.Sandbox.AllowHosts = e.hosts
	e.mu.Unlock()
	own := owner{
		release: func() error { return end(ctx, p) },
		placed:  true, kept: e.owner.kept,
		folders: e.owner.folders, baseline: e.owner.baseline, unknown: e.owner.unknown,
	}
	if own.kept {
		own.release = p.Close
	}
	c, err := prepare(ctx, p, cfg, own)
	if err != nil {
		return nil, err
	}
	c.first, c.grace, c.margin, c.probe, c.maxLine = start, e.grace, e.margin, e.probe, e.maxLine
	if err := c.base.share(&e.base); err != nil {
		return nil, errors.Join(err, c.gate.Close(), c.base.close())
	}
	if own.kept {
		err := errors.Join(c.beginRecord(ctx), c.forgetQueries(ctx))
		if err == nil && start.Transcript != nil {
			// Another program may have the first query of a copy that stays, and has only what is in it.
			_, err = c.PrepareSession(ctx, start)
		}
		if err != nil {
			return nil, errors.Join(err, c.gate.Close(), c.base.close())
		}
	}
	return c, nil
}

// Terminate closes the environment and ends its sandbox, even if the sandbox is kept or another
// program created it. It may be called after Close.
func (e *Environment) Terminate(ctx context.Context) error {
	_, err := e.prim.Terminate(context.WithoutCancel(ctx))
	if err == nil {
		kept.Forget(e.cfg.Sandbox.Type, e.ID())
	}
	return errors.Join(err, e.Close())
}

// forgetQueries removes the copied records of queries, which run only in the original.
func (e *Environment) forgetQueries(ctx context.Context) error {
	app := e.prim.Paths().App
	for _, name := range []string{queriesDir, queriesFile} {
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
	ctx, leave, err := e.enterAlone(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	return primitives.Snapshot(ctx, e.prim)
}

// Usage returns what the sandbox uses of its machine now. The error is errors.ErrUnsupported if
// the sandbox cannot report it.
func (e *Environment) Usage(ctx context.Context) (primitives.Usage, error) {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return primitives.Usage{}, err
	}
	defer leave()
	return primitives.ReadUsage(ctx, e.prim)
}

// Pause freezes the sandbox and all its processes until [Environment.Resume]. A running query
// waits too, but its deadlines do not. What Interrupt, SetMode and SetModel ask the agent for
// happens after Resume. Usage, Snapshot and Close work as before; Close pauses the sandbox again
// if it leaves the sandbox alive. Other methods return primitives.ErrUnavailable until Resume.
// Errors are those of primitives.Pause.
func (e *Environment) Pause(ctx context.Context) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if err := primitives.Pause(ctx, e.prim); err != nil {
		return err
	}
	outlives := context.WithoutCancel(ctx)
	e.resumeOnClose = func() (freeze func()) { return e.wake(outlives) }
	return nil
}

// Resume lets the processes of a paused sandbox continue.
func (e *Environment) Resume(ctx context.Context) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if err := primitives.Resume(ctx, e.prim); err != nil {
		return err
	}
	e.resumeOnClose = nil
	return nil
}

// checkNotPaused returns an error if the sandbox is paused: a live agent in it could neither work nor
// end.
func (e *Environment) checkNotPaused(ctx context.Context) error {
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if e.resumeOnClose == nil {
		return nil
	}
	paused, err := e.isPaused(ctx)
	switch {
	case err != nil:
		return err
	case paused:
		return fmt.Errorf("%w: it is paused; resume it", primitives.ErrUnavailable)
	}
	e.resumeOnClose = nil
	return nil
}

// isPaused asks the sandbox, because another program may have resumed it.
func (e *Environment) isPaused(ctx context.Context) (bool, error) {
	state, err := e.prim.Poll(ctx)
	return state.Status == primitives.StatusPaused, err
}

// resumeForClose resumes a paused sandbox, so that processes in it can end. The function it returns
// pauses the sandbox again if the sandbox outlives the environment.
func (e *Environment) resumeForClose() (freeze func()) {
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if e.resumeOnClose == nil {
		return func() {}
	}
	return e.resumeOnClose()
}

// wake resumes the sandbox so that Close can shut processes down. ctx is that of Pause, because
// Close has none.
func (e *Environment) wake(ctx context.Context) (freeze func()) {
	resuming, cancel := context.WithTimeout(ctx, e.probe)
	defer cancel()
	paused, err := e.isPaused(resuming)
	ends := e.owner.release != nil && !e.owner.kept
	// Resume also if Poll reports that it runs: this handle may not know.
	if rerr := primitives.Resume(resuming, e.prim); rerr != nil || err != nil || !paused || ends {
		return func() {} // how the processes end shows what is wrong
	}
	return func() {
		pausing, cancel := context.WithTimeout(ctx, e.probe)
		defer cancel()
		if err := primitives.Pause(pausing, e.prim); err != nil {
			e.log.Warn("could not pause the sandbox again", "error", err)
		}
	}
}
