// Package flock locks files. A lock excludes all other processes of the machine and all other
// goroutines of the process.
package flock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// poll is the interval between attempts to take a lock that is held.
const poll = 50 * time.Millisecond

// Lock takes the lock of a file, and creates the file if it is missing. The kernel releases the
// lock when the process ends. If the lock is held, Lock calls waiting once, unless it is nil,
// and waits. When ctx is done, Lock returns its cause.
func Lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	unlock, err = lock(name, waiting, ctx.Done())
	if errors.Is(err, errStopped) {
		return nil, context.Cause(ctx)
	}
	return unlock, err
}

// LockWithin takes the lock of a file that nobody holds for long. If it is held for longer than most, the error is
// os.ErrDeadlineExceeded.
func LockWithin(name string, most time.Duration) (unlock func(), err error) {
	late := make(chan struct{})
	timer := time.AfterFunc(most, func() { close(late) })
	defer timer.Stop()
	unlock, err = lock(name, nil, late)
	if errors.Is(err, errStopped) {
		return nil, &fs.PathError{Op: "lock", Path: name, Err: os.ErrDeadlineExceeded}
	}
	return unlock, err
}

var errStopped = errors.New("stopped")

func lock(name string, waiting func(), stop <-chan struct{}) (unlock func(), err error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() {
				// Closing is not enough: a child that is being started may hold the file, too.
				_ = unix.Flock(int(file.Fd()), unix.LOCK_UN)
				_ = file.Close()
			}, nil
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
		case <-stop:
			timer.Stop()
			_ = file.Close()
			return nil, errStopped
		}
	}
}
