package flock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

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
