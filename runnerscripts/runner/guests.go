package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// guests is a file of the sandbox that every attached guest keeps locked. The first guest, which
// keeps the sandbox alive, reads from the lock whether a client is connected. The kernel unlocks
// the file when a guest dies. The file holds the name of the sandbox, if that has one.
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

// startedAgain reports whether a first guest was started before in the sandbox with this name, and
// since when the sandbox exists. The file of a copy, which is another sandbox, holds the name of the
// original.
func (g *guests) startedAgain(name string) (again bool, since time.Time, err error) {
	known := make([]byte, len(name)+1)
	n, err := g.file.ReadAt(known, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, since, err
	}
	if string(known[:n]) == name {
		info, err := g.file.Stat()
		if err != nil {
			return false, since, err
		}
		return true, info.ModTime(), nil
	}
	if err := g.file.Truncate(0); err != nil {
		return false, since, err
	}
	_, err = g.file.WriteAt([]byte(name), 0)
	return false, time.Now(), err
}

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
// is negative. It returns at once when the sandbox was terminated, and with an error when its files
// are gone. If ctx is done first, it returns the error of ctx.
func (g *guests) awaitIdle(ctx context.Context, sandbox primitives.EnvironmentPrimitive, stay time.Duration, until time.Time) error {
	every := awaitInterval
	if stay > 0 {
		every = min(every, max(stay/4, time.Millisecond))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := time.Now(); ; {
		switch state, err := sandbox.Poll(ctx); {
		case err != nil || state.Running():
		case state.Status == primitives.StatusTerminated:
			return nil
		default:
			return fmt.Errorf("the sandbox has ended: %s", state.Status)
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
