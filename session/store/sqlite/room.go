package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// spareRoom is the room below which deletions keep the write-ahead log short.
const spareRoom = 64 << 20

// A full disk has no room to delete anything, as SQLite writes what it deletes to its log. The
// reserve is a file that makes this room when it is removed. Open makes it again.
const (
	reserveFile = "reserve"
	reserveSize = 2 << 20
)

// reserve makes the reserve if it is missing. It is not made on a full disk.
func (s *Store) reserve() {
	name := filepath.Join(s.dir, reserveFile)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return
	}
	_, err = f.Write(make([]byte, reserveSize))
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(name)
	}
}

// withReserve calls f again with the room of the reserve if the disk is full.
func (s *Store) withReserve(f func() error) error {
	err := f()
	if err == nil || !errors.Is(translate(s.dir, err), syscall.ENOSPC) || os.Remove(filepath.Join(s.dir, reserveFile)) != nil {
		return err
	}
	return f()
}

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
	return int64(disk.Bavail) * int64(disk.Bsize), files, nil //nolint:unconvert // of another type on other systems
}

// Size returns how many bytes of the disk the sessions take, compressed, and what they share counted
// once. From limit bytes on no session and no prompt begins, see Config.MaxSize; it is negative if
// there is no limit.
func (s *Store) Size(ctx context.Context) (size, limit int64, err error) {
	if size, err = s.size(ctx); err != nil {
		return 0, 0, s.failed(ctx, "size", "", err)
	}
	return size, s.cfg.MaxSize, nil
}

// size returns how many bytes the sessions take. Pages that a removal has freed do not count, as
// they are used again.
func (s *Store) size(ctx context.Context) (size int64, err error) {
	err = s.r.QueryRowContext(ctx, "SELECT (page_count - freelist_count) * page_size + "+
		"(SELECT coalesce(sum(size), 0) FROM blob WHERE size > 0) FROM pragma_page_count, pragma_freelist_count, pragma_page_size").
		Scan(integer(&size))
	return size, err
}

// admit refuses to begin something in a store, or on a disk, that is nearly full.
func (s *Store) admit(ctx context.Context) error {
	if s.cfg.MaxSize > 0 {
		size, err := s.size(ctx)
		if err != nil {
			return err
		}
		if size >= s.cfg.MaxSize {
			return fmt.Errorf("%w: the sessions in %s take %d MiB, of at most %d; remove old ones, as 'envctl sessions rm --older-than 720h' does, or raise MaxSize (of envctl: AGENTENV_MAX_STORE_SIZE)",
				syscall.ENOSPC, filepath.Clean(s.dir), size>>20, s.cfg.MaxSize>>20)
		}
	}
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
			return ev.Type.EndsQuery() || ev.Type == runnerscripts.TypeCheckpoint || ev.Type == runnerscripts.TypeRewound
		})
}
