package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/session/store"
)

// A program that stores in a database without a name would lose all with its end, and say nothing.
func TestADatabaseThatIsRemovedOrReplacedInUseIsNotWritten(t *testing.T) {
	for name, lose := range map[string]func(name string) error{
		"removed": os.Remove,
		"replaced": func(name string) error {
			data, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(name+".new", data, 0o600)
			}
			return errors.Join(err, os.Rename(name+".new", name))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := withSession(t)
			fill(t, s, 1)
			if err := lose(filepath.Join(dir, Database)); err != nil {
				t.Fatal(err)
			}
			if err := s.Append(t.Context(), "s", numbered(2)); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("append: %v", err)
			}
			if err := s.Create(t.Context(), store.Record{ID: "new"}); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("create: %v", err)
			}
			check(t, s, 1)
		})
	}
}

func TestSeveralMayCreateAStoreAtOnce(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			s, err := Open(t.Context(), dir)
			if err == nil {
				err = s.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// findUnused takes the lock of the database that SQLite takes before it removes the log of the last
// program, and fails if it gets it.
func findUnused(_ context.Context, dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, Database), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	const sharedFirst, sharedSize = 0x40000002, 510
	err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: sharedFirst, Len: sharedSize})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil
	}
	return errors.Join(errors.New("the database is not locked"), err)
}

// A program loses its locks of a file when it closes any descriptor of it. Another program, such as
// sqlite3, would then take itself for the last one, and remove the log to which this one writes.
func TestAStoreThatIsOpenedTwiceKeepsItsLocks(t *testing.T) {
	s, dir := withSession(t)
	fill(t, s, 1)
	opened(t, dir)
	if out, err := childCommand(t, "unused", dir).Output(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
