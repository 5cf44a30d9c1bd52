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

// guests is a file of the sandbox that every attached guest keeps
// locked: so the first guest, which keeps the sandbox alive, knows whether a client
// is connected. The kernel unlocks it when a guest dies.
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

// join makes this guest one of them until it ends.
func (g *guests) join() error {
	// Only await locks it otherwise, for no longer than a moment.
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

// any reports whether there are others. What cannot be found out is yes.
func (g *guests) any() bool {
	if err := g.lock(unix.LOCK_EX | unix.LOCK_NB); err != nil {
		return true
	}
	return g.lock(unix.LOCK_UN) != nil
}

// awaitInterval is how often await looks around.
const awaitInterval = time.Second

// await returns when no guest was attached for so long, but not before until and
// never if stay is negative; at once when the sandbox was terminated. The error is
// the context's, if that is done first.
func (g *guests) await(ctx context.Context, sandbox primitives.EnvironmentPrimitive, stay time.Duration, until time.Time) error {
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
		// Not before it has looked: this program may have stood still for long.
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
