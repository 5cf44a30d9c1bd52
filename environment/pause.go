package environment

import (
	"context"
	"fmt"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Pause freezes the sandbox with all that runs in it until [Environment.Resume]. A
// running query waits, too, and its deadlines do not; what Interrupt, SetMode and
// SetModel ask the agent for happens after Resume. Usage, Snapshot, Fork and Close work as
// before, the last without waking up a sandbox that it leaves alive for long. The other
// methods return primitives.ErrUnavailable meanwhile. Errors are those of
// primitives.Pause.
func (e *Environment) Pause(ctx context.Context) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := primitives.Pause(ctx, e.prim); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	outlives := context.WithoutCancel(ctx)
	thaw := func() (freeze func()) { return e.thaw(outlives) }
	e.paused.Store(&thaw)
	return nil
}

// Resume has a paused sandbox go on where it was.
func (e *Environment) Resume(ctx context.Context) error {
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := primitives.Resume(ctx, e.prim); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	e.paused.Store(nil)
	return nil
}

// errPaused is what a query gets that an agent which is alive could not work on.
var errPaused = fmt.Errorf("%w: it is paused; resume it", primitives.ErrUnavailable)

// thaw has a paused sandbox go on, so that what is told to end can heed that. The
// function that it returns pauses again what is to stay as it was.
func (e *Environment) thaw(ctx context.Context) (freeze func()) {
	resuming, cancel := context.WithTimeout(ctx, e.probe)
	defer cancel()
	ends := e.owner.release != nil && !e.owner.kept
	if err := primitives.Resume(resuming, e.prim); err != nil || ends {
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
