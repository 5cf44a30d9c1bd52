package environment

import (
	"context"
	"fmt"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Pause freezes the sandbox with all that runs in it until [Environment.Resume]. A
// running query waits, too, and its deadlines do not; what Interrupt, SetMode and
// SetModel ask the agent for happens after Resume. Usage, Snapshot and Close work as
// before, the last without leaving awake what it leaves alive. The other methods return
// primitives.ErrUnavailable meanwhile. Errors are those of primitives.Pause.
func (e *Environment) Pause(ctx context.Context) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if err := primitives.Pause(ctx, e.prim); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	outlives := context.WithoutCancel(ctx)
	e.thaw = func() (freeze func()) { return e.wake(outlives) }
	return nil
}

// Resume has a paused sandbox go on where it was.
func (e *Environment) Resume(ctx context.Context) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if err := primitives.Resume(ctx, e.prim); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	e.thaw = nil
	return nil
}

// awake returns an error if the sandbox is paused: an agent that is alive could not
// work, or end.
func (e *Environment) awake(ctx context.Context) error {
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if e.thaw == nil {
		return nil
	}
	paused, err := e.isPaused(ctx)
	switch {
	case err != nil:
		return err
	case paused:
		return fmt.Errorf("%w: it is paused; resume it", primitives.ErrUnavailable)
	}
	e.thaw = nil
	return nil
}

// isPaused asks the sandbox: somebody else may have resumed it.
func (e *Environment) isPaused(ctx context.Context) (bool, error) {
	state, err := e.prim.Poll(ctx)
	return state.Status == primitives.StatusPaused, err
}

// thawed has a paused sandbox go on, so that what is told to end can heed that. The
// function that it returns pauses again what is to stay as it was.
func (e *Environment) thawed() (freeze func()) {
	e.pausing.Lock()
	defer e.pausing.Unlock()
	if e.thaw == nil {
		return func() {}
	}
	return e.thaw()
}

// wake is what Pause leaves for thawed to do, with the context that Close has not.
func (e *Environment) wake(ctx context.Context) (freeze func()) {
	resuming, cancel := context.WithTimeout(ctx, e.probe)
	defer cancel()
	paused, err := e.isPaused(resuming)
	ends := e.owner.release != nil && !e.owner.kept
	// Also if it goes on already: this handle may not know.
	if rerr := primitives.Resume(resuming, e.prim); rerr != nil || err != nil || !paused || ends {
		return func() {} // how what runs ends shows what is the matter
	}
	return func() {
		pausing, cancel := context.WithTimeout(ctx, e.probe)
		defer cancel()
		if err := primitives.Pause(pausing, e.prim); err != nil {
			e.log.Warn("could not pause the sandbox again", "error", err)
		}
	}
}
