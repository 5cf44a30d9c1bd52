package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// guests is a file of the sandbox that every attached guest keeps locked. The first guest, which
// keeps the sandbox alive, reads from the lock whether a client is connected. The kernel unlocks
// the file when a guest dies.
type guests struct {
	file *os.File
}

func openGuests(app string) (*guests, error) {
	f, err := os.OpenFile(filepath.Join(app, "guests"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &guests{f}, nil
}

func (g *guests) Close() error { return g.file.Close() }

// join registers this guest as attached until it ends.
func (g *guests) join() error {
	// Otherwise only any locks the file, for a moment.
	return g.lock(unix.LOCK_SH)
}

func (g *guests) lock(how int) error {
	for {
		err := unix.Flock(int(g.file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// any reports whether other guests are attached. It returns true if it cannot find out.
func (g *guests) any() bool {
	if err := g.lock(unix.LOCK_EX | unix.LOCK_NB); err != nil {
		return true
	}
	return g.lock(unix.LOCK_UN) != nil
}

// awaitInterval is how often awaitIdle checks for attached guests.
const awaitInterval = time.Second

// awaitIdle returns when no guest has been attached for stay, but not before until, and never if stay
// is negative. It returns at once when the sandbox has ended. If ctx is done first, it returns the
// error of ctx.
func (g *guests) awaitIdle(ctx context.Context, sandbox primitives.EnvironmentPrimitive, stay time.Duration, until time.Time) error {
	every := awaitInterval
	if stay > 0 {
		every = min(every, max(stay/4, time.Millisecond))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := time.Now(); ; {
		if state, err := sandbox.Poll(ctx); err == nil && !state.Running() {
			return nil
		}
		now := time.Now()
		if g.any() {
			last = now
		}
		// Decide only after that check: this program may have been suspended for long.
		if stay >= 0 && now.Sub(last) >= stay && !now.Before(until) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
