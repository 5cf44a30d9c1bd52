package flock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/flock"
)

func TestLockIsHeldByOneAtATime(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	unlock, err := flock.Lock(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan struct{})
	got := make(chan error, 1)
	go func() {
		unlock, err := flock.Lock(t.Context(), name, func() { close(waits) })
		if err == nil {
			unlock()
		}
		got <- err
	}()
	<-waits
	select {
	case err := <-got:
		t.Fatalf("two have the lock, %v", err)
	default:
	}
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// A child that is being started has all files of its parent until it calls exec.
func TestAChildDoesNotKeepALock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	unlock, err := flock.Lock(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer inherit(t, name)()
	unlock()
	unlock, err = flock.LockWithin(name, time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// inherit duplicates the descriptors of a file, as a fork does. The caller closes them.
func inherit(t *testing.T, name string) (closeAll func()) {
	t.Helper()
	want, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for fd := range 1000 {
		twin, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue
		}
		f := os.NewFile(uintptr(twin), name)
		if info, err := f.Stat(); err == nil && os.SameFile(info, want) {
			files = append(files, f)
			break
		}
		f.Close()
	}
	if len(files) == 0 {
		t.Fatal("the file is not open")
	}
	return func() {
		for _, f := range files {
			f.Close()
		}
	}
}

func TestWaitingForALockEndsWithTheContext(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	unlock, err := flock.Lock(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = flock.Lock(ctx, name, func() { cancel(why) })
	if !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestAShortLockIsNotWaitedForForEver(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	unlock, err := flock.LockWithin(name, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := flock.LockWithin(name, time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a lock that is held: %v", err)
	}
	unlock()
	unlock, err = flock.LockWithin(name, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
