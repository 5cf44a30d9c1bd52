// Package flock locks files: among all processes of a machine, and the goroutines
// of each, one at a time does its work.
package flock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// poll is how often a lock that someone else holds is tried again.
const poll = 50 * time.Millisecond

// Lock takes the lock of a file, which is made if it is missing. It goes away with
// the process that holds it. When it is held by someone else, waiting is called
// once; it may be nil. The error of a ctx that ends is its cause.
func Lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = file.Close() }, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			_ = file.Close()
			return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		timer := time.NewTimer(poll)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			_ = file.Close()
			return nil, context.Cause(ctx)
		}
	}
}
