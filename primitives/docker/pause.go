package docker

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Pause freezes the container. Its grace period does not run while it is paused: the
// sandbox stays until it is resumed or terminated, or until [Provider.GC] finds that its
// owner has died.
func (d *driver) Pause(ctx context.Context) error { return d.freeze(ctx, true) }

// Resume thaws the container, also one that another handle has paused.
func (d *driver) Resume(ctx context.Context) error { return d.freeze(ctx, false) }

// freeze pauses or resumes the container. The Sandbox calls it once at a time.
func (d *driver) freeze(ctx context.Context, pause bool) error {
	before := d.paused.Load()
	do, want := d.eng.ContainerUnpause, primitives.StatusRunning
	if pause {
		do, want = d.eng.ContainerPause, primitives.StatusPaused
		d.paused.Store(true) // before the guest falls silent
	}
	// Half a freezing would be neither.
	patient, cancel := patience.Outlast(ctx, stateTimeout)
	defer cancel()
	err := do(patient, d.container)
	for try := 1; err != nil; try++ {
		// It may be as it should be already.
		state, ferr := d.engineState(ctx)
		done := ferr == nil && state.Status == want
		if done && (before == pause || !d.justFrozen()) {
			break
		}
		// Or the engine has just heard of the time before, or has heard of it only after
		// it has refused, see justFrozen.
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

// freezeTries is how often a busy container is frozen before that is given up.
const freezeTries = 10

// unableToFreeze reports whether runc gave up on processes that fork faster than a
// control group of version 1 freezes. The engine has no kind of error for it.
func unableToFreeze(err error) bool { return strings.Contains(err.Error(), "unable to freeze") }

// lateNews is how late an engine may hear of what it has done itself.
const lateNews = 2 * time.Second

// justFrozen reports whether this handle has paused or resumed its container so
// lately that the engine may err about it: some (20.10 is one) hear of what they have
// done from containerd, and late, when they have already done something else.
func (d *driver) justFrozen() bool {
	at := d.frozen.Load()
	return at != nil && time.Since(*at) < lateNews
}

// engineState asks the engine once, whatever this handle knows.
func (d *driver) engineState(ctx context.Context) (primitives.State, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateTimeout)
	defer cancel()
	return engineState(ctx, d.eng, d.container)
}

// thawInterval is how often thaw looks whether a container is paused.
const thawInterval = time.Second

// thaw resumes a container that is about to be ended if another handle has paused it:
// frozen processes do not end politely. It looks only if the end is slow to come. The
// function that it returns ends the looking.
func (d *driver) thaw(ctx context.Context) (stop func()) {
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		tick := time.NewTicker(thawInterval)
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
