package sqlite

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// InUse reports whether a program holds the lease of a session, see Lock. It does not take the
// lease, so it disturbs no program that is about to. An unknown session is not in use.
func (s *Store) InUse(ctx context.Context, id string) (bool, error) {
	used, err := inUse(s.lockFile(id))
	if err != nil {
		return false, s.failed(ctx, "look at the lock", id, err)
	}
	return used, nil
}

// lockFile returns the name of a session's lock file.
func (s *Store) lockFile(id string) string {
	sum := sha256.Sum256([]byte(id)) // an id may hold any character
	return filepath.Join(s.dir, lockFolder, hex.EncodeToString(sum[:16]))
}

func inUse(name string) (bool, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	if ownerDied(f) {
		return false, nil // a child that inherited the lock drives no session
	}
	for { // the owner lives, or its number is that of another process by now
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return true, nil
		}
		return false, err
	}
}
