package sqlite

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// leastRoom is what SQLite needs for the files beside its database.
const leastRoom = 64 << 10

// room returns the bytes and the files for which the disk of a folder has room.
func room(dir string) (free int64, files uint64, err error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, 0, err
	}
	files = disk.Ffree
	if disk.Files == 0 { // a file system without such a limit
		files = math.MaxUint64
	}
	return int64(disk.Bavail) * int64(disk.Bsize), files, nil
}

// admit refuses to begin something on a disk that is nearly full.
func (s *Store) admit() error {
	if s.cfg.MinFree < 0 {
		return nil
	}
	free, _, err := room(s.dir)
	if err != nil || free >= s.cfg.MinFree {
		return err
	}
	return fmt.Errorf("%w: the disk of %s has %d MiB free, and something new needs %d MiB; make room, or remove sessions",
		syscall.ENOSPC, filepath.Clean(s.dir), free>>20, s.cfg.MinFree>>20)
}

// begins reports whether events accept a new prompt.
func begins(events []runnerscripts.Event) bool {
	return slices.ContainsFunc(events, func(ev runnerscripts.Event) bool { return ev.Type == runnerscripts.TypeQueryQueued })
}

// durably reports whether events must be on the disk when they are acknowledged.
func (s *Store) durably(events []runnerscripts.Event) bool {
	return s.cfg.Durability == DurabilityEvent || s.cfg.Durability == DurabilityQuery &&
		slices.ContainsFunc(events, func(ev runnerscripts.Event) bool {
			switch ev.Type {
			case runnerscripts.TypeQueryCompleted, runnerscripts.TypeQueryFailed, runnerscripts.TypeCheckpoint, runnerscripts.TypeRewound:
				return true
			}
			return false
		})
}
