package docker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Pause implements primitives.Pauser with the engine's freezer. The grace of a
// sandbox that nobody is connected to does not run while it is paused: it stays
// until it is resumed or terminated, or until [GC] finds that its program has died.
func (s *Sandbox) Pause(ctx context.Context) error {
	return wrap("pause", s.id, s.freeze(ctx, true))
}

// Resume implements primitives.Pauser. It also resumes a container that somebody
// else has paused.
func (s *Sandbox) Resume(ctx context.Context) error {
	return wrap("resume", s.id, s.freeze(ctx, false))
}

// freeze pauses or resumes the container.
func (s *Sandbox) freeze(ctx context.Context, pause bool) error {
	if err := s.live(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.freezing.Lock()
	defer s.freezing.Unlock()
	before := s.paused.Load()
	do, want := s.eng.ContainerUnpause, primitives.StatusRunning
	if pause {
		do, want = s.eng.ContainerPause, primitives.StatusPaused
		s.setPaused(true) // before the guest falls silent
	}
	// Half a freezing would be neither.
	patient, cancel := outlast(ctx, fateTimeout)
	defer cancel()
	err := do(patient, s.link.container)
	for try := 1; err != nil; try++ {
		// It may be as it should be already.
		state, ferr := s.link.fate()
		done := ferr == nil && state.Status == want
		if done && (before == pause || !s.justFrozen()) {
			break
		}
		// Or the engine has just heard of the time before, or has heard of it only after
		// it has refused, see justFrozen.
		alive := ferr == nil && (state.Running() || state.Status == primitives.StatusPaused)
		again := s.justFrozen() || unableToFreeze(err) && try < freezeTries
		if !alive || !again {
			s.setPaused(before)
			return s.explain(err)
		}
		s.cfg.Logger.Debug("engine is asked again to pause or resume the container", "attempt", try, "error", err)
		select {
		case <-time.After(fatePause):
			err = do(patient, s.link.container)
		case <-ctx.Done():
			s.setPaused(before)
			return context.Cause(ctx)
		}
	}
	now := time.Now()
	s.frozen.Store(&now)
	s.setPaused(pause)
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
func (s *Sandbox) justFrozen() bool {
	at := s.frozen.Load()
	return at != nil && time.Since(*at) < lateNews
}

// state is the fate of the container. Of whether it is paused this handle may know
// more than the engine for a moment, which is then asked again.
func (s *Sandbox) state(ctx context.Context) (primitives.State, error) {
	tick := time.NewTicker(fatePause)
	defer tick.Stop()
	for {
		state, err := fate(ctx, s.eng, s.link.container)
		paused := state.Status == primitives.StatusPaused
		if err != nil || !paused && !state.Running() || paused == s.paused.Load() || !s.justFrozen() {
			return state, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return state, nil
		}
	}
}

func (s *Sandbox) setPaused(paused bool) {
	s.paused.Store(paused)
	s.link.guest.SetPaused(paused)
}

// thawInterval is how often thaw looks whether a container is paused.
const thawInterval = time.Second

// thaw resumes a container that is about to be ended: frozen processes heed
// nothing. What this handle has not paused itself it looks for only if the end is
// slow to come. The function that it returns ends the looking.
func (s *Sandbox) thaw(ctx context.Context) (stop func()) {
	ctx = context.WithoutCancel(ctx)
	if s.paused.Load() {
		_ = s.freeze(ctx, false) // removing the container ends it anyhow
		return func() {}
	}
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
			if state, err := fate(ctx, s.eng, s.link.container); err == nil && state.Status == primitives.StatusPaused {
				_ = s.eng.ContainerUnpause(ctx, s.link.container) // the same
			}
		}
	})
	return func() {
		cancel()
		looking.Wait()
	}
}

// live says why not even the engine can do anything with the sandbox, or nil: a
// handle whose guest does not answer any more still can pause and copy it.
func (s *Sandbox) live() error {
	err := s.Err()
	if s.closed.Load() || errors.Is(err, primitives.ErrTerminated) {
		return err
	}
	return nil
}

// explain turns an error of the engine about a container that is no more into what
// became of it.
func (s *Sandbox) explain(err error) error {
	if !cerrdefs.IsNotFound(err) && !cerrdefs.IsConflict(err) {
		return explain(s.eng, err)
	}
	state, ferr := s.link.fate()
	switch {
	case ferr != nil:
		return errors.Join(explain(s.eng, err), ferr)
	case state.Status == primitives.StatusTerminated:
		return primitives.ErrTerminated
	case !state.Running() && state.Status != primitives.StatusPaused:
		return gone(state)
	}
	return explain(s.eng, err)
}
