package sqlite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/session/store"
)

// lockFolder holds the files whose locks are those of sessions.
const lockFolder = "locks"

// A process that was being started when its program died has the program's files, and so
// its locks, until it executes. inheritedLock is how long that may take, and
// inheritedPause the time between looks.
const (
	inheritedLock  = 5 * time.Second
	inheritedPause = 5 * time.Millisecond
)

// maxOwner is how many bytes of a lock file are read.
const maxOwner = 1 << 10

// Lock makes the caller the one that drives a session. The lock is one of a file, so it
// ends with the program.
func (s *Store) Lock(ctx context.Context, id string) (unlock func() error, err error) {
	f, err := s.lock(ctx, id)
	if err != nil {
		return nil, s.failed(ctx, "lock", id, err)
	}
	return sync.OnceValue(func() error {
		err := os.Remove(f.Name())
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		// Not only by closing: a process that is being started may have the file, too.
		err = errors.Join(err, unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
		if err != nil {
			return &store.Error{Op: "unlock", ID: id, Err: err}
		}
		return nil
	}), nil
}

func (s *Store) lock(ctx context.Context, id string) (*os.File, error) {
	if _, _, err := find(ctx, s.r, id); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(id)) // an id may hold any character
	name := filepath.Join(s.dir, lockFolder, hex.EncodeToString(sum[:16]))
	patience := time.Now().Add(inheritedLock)
	for ctx.Err() == nil {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		ok, err := tryLock(f)
		if err == nil && !ok && ownerDied(f) && time.Now().Before(patience) {
			pause := time.NewTimer(inheritedPause)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
			}
			if err = f.Close(); err != nil {
				return nil, err
			}
			continue
		}
		if err == nil && !ok {
			err = fmt.Errorf("%w by %s", store.ErrLocked, owner(f))
		}
		var present bool
		if err == nil {
			present, err = isPresent(f)
		}
		if err == nil && present {
			if err = own(f); err == nil {
				return f, nil
			}
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		// It was removed by the one who had the lock.
	}
	return nil, ctx.Err()
}

func tryLock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		}
		return err == nil, err
	}
}

// isPresent reports whether the file still has its name.
func isPresent(f *os.File) (bool, error) {
	is, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(is, named), err
}

// ownedBy begins what is written down of the one who has the lock.
const ownedBy = "process %d"

// own writes down who has the lock.
func own(f *os.File) error {
	host, _ := os.Hostname() // empty is unknown
	text := fmt.Sprintf(ownedBy+" (%s) on %s since %s", os.Getpid(), filepath.Base(os.Args[0]), host, time.Now().Format(time.RFC3339))
	err := f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(text), 0)
	}
	return err
}

// ownerDied reports whether the program that has the lock is known to be dead.
func ownerDied(f *os.File) bool {
	pid := 0
	_, err := fmt.Sscanf(owner(f), ownedBy, &pid)
	return err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// owner reads who has the lock.
func owner(f *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxOwner))
	if text = bytes.TrimSpace(text); err != nil || len(text) == 0 {
		return "another program"
	}
	return string(text)
}
