package sqlite

import (
	"bytes"
	"context"
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

// lockFolder holds the lock files of the sessions, and openLock, which serializes migrations.
const (
	lockFolder = "locks"
	openLock   = "open"
)

// A child that was being forked when its program died holds the program's files, and so its
// locks, until it calls exec. inheritedLock bounds that time, and inheritedPause is the time
// between checks.
const (
	inheritedLock  = 5 * time.Second
	inheritedPause = 5 * time.Millisecond
)

// maxOwner is how many bytes of a lock file are read.
const maxOwner = 1 << 10

// Lock acquires the lease of a session. It locks a file, so the lease ends with the program.
func (s *Store) Lock(ctx context.Context, id string) (unlock func() error, err error) {
	f, err := s.lock(ctx, id)
	if err != nil {
		return nil, s.failed(ctx, "lock", id, err)
	}
	return sync.OnceValue(func() error {
		own, err := isPresent(f)
		if own { // else the file was removed, and one of this name belongs to another owner
			err = os.Remove(f.Name())
		}
		// Closing is not enough: a child that is being started may hold the file, too.
		err = errors.Join(err, unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
		if err != nil {
			return &store.Error{Op: "unlock", ID: id, Err: err}
		}
		return nil
	}), nil
}

func (s *Store) lock(ctx context.Context, id string) (*os.File, error) {
	if _, err := headOf(ctx, s.r, id); err != nil && !errors.Is(err, store.ErrCorrupt) { // a damaged record can be locked, to delete it
		return nil, err
	}
	if s.w == nil {
		return nil, errReadOnly
	}
	name := s.lockFile(id)
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
		// The previous owner removed the file.
	}
	return nil, ctx.Err()
}

// unused returns store.ErrBusy if a program drives a session. A program of an older version could
// not go on after a migration.
func (s *Store) unused() error {
	list, err := os.ReadDir(filepath.Join(s.dir, lockFolder))
	if err != nil {
		return err
	}
	for _, entry := range list {
		if entry.Name() == openLock {
			continue
		}
		f, err := os.OpenFile(filepath.Join(s.dir, lockFolder, entry.Name()), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		free, err := tryLock(f)
		if err == nil && !free {
			err = fmt.Errorf("%w, %s, which an update of the database would break; end it first", store.ErrBusy, owner(f))
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
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

// ownedBy is the format of the owner in a lock file.
const ownedBy = "process %d"

// own writes the owner into the lock file.
func own(f *os.File) error {
	host, _ := os.Hostname() // empty means unknown
	text := fmt.Sprintf(ownedBy+" (%s) on %s since %s", os.Getpid(), filepath.Base(os.Args[0]), host, time.Now().Format(time.RFC3339))
	err := f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(text), 0)
	}
	return err
}

// ownerDied reports whether the owner of the lock is known to be dead.
func ownerDied(f *os.File) bool {
	pid := 0
	_, err := fmt.Sscanf(owner(f), ownedBy, &pid)
	return err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// owner reads the owner from the lock file.
func owner(f *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxOwner))
	if text = bytes.TrimSpace(text); err != nil || len(text) == 0 {
		return "another program"
	}
	return string(text)
}
