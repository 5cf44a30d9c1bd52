package docker

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Pause pauses the container. Its grace period does not run meanwhile: the sandbox stays until it
// is resumed or terminated, or until [Provider.GC] finds that its owner has died.
func (d *driver) Pause(ctx context.Context) error { return d.freeze(ctx, true) }

// Resume resumes the container, also if another handle has paused it.
func (d *driver) Resume(ctx context.Context) error { return d.freeze(ctx, false) }

// freeze pauses or resumes the container. The Sandbox makes one call at a time.
func (d *driver) freeze(ctx context.Context, pause bool) error {
	before := d.paused.Load()
	do, want := d.eng.ContainerUnpause, primitives.StatusRunning
	if pause {
		do, want = d.eng.ContainerPause, primitives.StatusPaused
		d.paused.Store(true) // before the guest stops answering
	}
	// Outlast ctx: after an interrupted request the state would be unknown.
	patient, cancel := patience.Outlast(ctx, stateTimeout)
	defer cancel()
	err := do(patient, d.container)
	for try := 1; err != nil; try++ {
		// The container may already be in the wanted state.
		state, ferr := d.engineState(ctx)
		done := ferr == nil && state.Status == want
		if done && (before == pause || !d.justFrozen()) {
			break
		}
		// Or the engine has only now learned of the previous change, or learned of it after it
		// refused this one, see justFrozen.
		alive := ferr == nil && (state.Running() || state.Status == primitives.StatusPaused)
		again := d.justFrozen() || unableToFreeze(err) && try < freezeTries
		if !alive || !again {
			d.paused.Store(before)
			return d.explain(ctx, err)
		}
		d.cfg.Logger.Debug("engine is asked again to pause or resume the container", "attempt", try, "error", err)
		select {
		case <-time.After(stateInterval):
			err = do(patient, d.container)
		case <-ctx.Done():
			d.paused.Store(before)
			return context.Cause(ctx)
		}
	}
	now := time.Now()
	d.frozen.Store(&now)
	d.paused.Store(pause)
	return nil
}

// freezeTries bounds the attempts to freeze a busy container.
const freezeTries = 10

// unableToFreeze reports whether runc gave up on processes that fork faster than a control group of
// version 1 freezes. The engine has no error type for it.
func unableToFreeze(err error) bool { return strings.Contains(err.Error(), "unable to freeze") }

// engineLag is how late an engine may learn of a change that it has made itself.
const engineLag = 2 * time.Second

// justFrozen reports whether this handle has paused or resumed its container so recently that the
// engine may be wrong about it: some engines, such as 20.10, learn of their own changes from
// containerd, and late, after they have already made another one.
func (d *driver) justFrozen() bool {
	at := d.frozen.Load()
	return at != nil && time.Since(*at) < engineLag
}

// engineState asks the engine once. It ignores what this handle knows.
func (d *driver) engineState(ctx context.Context) (primitives.State, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateTimeout)
	defer cancel()
	return engineState(ctx, d.eng, d.container)
}

// resumeInterval is how often resumeWhileEnding checks whether a container is paused.
const resumeInterval = time.Second

// resumeWhileEnding resumes a container that is about to be ended if another handle has paused it: frozen
// processes cannot end by themselves. It checks only while the end takes long. stop ends the
// checks.
func (d *driver) resumeWhileEnding(ctx context.Context) (stop func()) {
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		tick := time.NewTicker(resumeInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if state, err := engineState(ctx, d.eng, d.container); err == nil && state.Status == primitives.StatusPaused {
				_ = d.eng.ContainerUnpause(ctx, d.container) // removing the container ends it anyhow
			}
		}
	})
	return func() {
		cancel()
		looking.Wait()
	}
}
