package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/session/store"
)

// fill appends n events to session "s".
func fill(t testing.TB, s *Store, n uint64) {
	t.Helper()
	for seq := uint64(1); seq <= n; seq++ {
		if err := s.Append(t.Context(), "s", numbered(seq)); err != nil {
			t.Fatal(err)
		}
	}
}

func put(t *testing.T, s *Store, data []byte) store.Digest {
	t.Helper()
	d, err := store.PutBlob(t.Context(), s, "s", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func execute(t *testing.T, s *Store, statement string, args ...any) {
	t.Helper()
	if _, err := s.w.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

func TestADamagedPageIsReportedAndNeverReturned(t *testing.T) {
	s, dir := withSession(t)
	const events = 100
	fill(t, s, events)
	put(t, s, content(1))
	execute(t, s, "PRAGMA wal_checkpoint(TRUNCATE)")
	good, err := os.ReadFile(filepath.Join(dir, Database))
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	told := 0
	for at := 0; at < len(good); at += page {
		bad := bytes.Clone(good)
		for i := range bad[at : at+page] {
			bad[at+i] ^= 0x55
		}
		if readDamaged(t, bad, events) {
			told++
		}
		// Change a single bit, which SQLite itself does not detect.
		bad = bytes.Clone(good)
		bad[at+page-100] ^= 0x01
		readDamaged(t, bad, events)
	}
	if pages := len(good) / page; told < pages/2 {
		t.Errorf("%d of %d damaged pages were told", told, pages)
	}
}

// readDamaged reads a damaged database and reports whether the store returned ErrCorrupt.
func readDamaged(t *testing.T, data []byte, events uint64) bool {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Database), data, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), dir)
	if err != nil {
		return corrupt(t, err)
	}
	defer s.Close()
	next := uint64(1)
	for ev, err := range s.Events(t.Context(), "s", 1) {
		if err != nil {
			return corrupt(t, err)
		}
		if ev.Seq != next || string(ev.Payload) != string(numbered(next).Payload) {
			t.Errorf("event %d was read as %+v", next, ev)
		}
		next++
	}
	if next != events+1 {
		t.Errorf("%d events without an error", next-1)
	}
	got, err := readBlob(t, s, blobOf(content(1)))
	if err != nil {
		return corrupt(t, err)
	}
	if !bytes.Equal(got, content(1)) {
		t.Error("the blob was read as something else")
	}
	return false
}

func corrupt(t *testing.T, err error) bool {
	t.Helper()
	if !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a damaged database: %v", err)
	}
	return true
}

func TestADamagedBlobIsReportedAndCanBeReplaced(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, file string){
		"a byte is another one": func(t *testing.T, file string) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2] ^= 1
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"half of it is there": func(t *testing.T, file string) {
			if err := os.Truncate(file, maxInline/2); err != nil {
				t.Fatal(err)
			}
		},
		"it is gone": func(t *testing.T, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := withSession(t)
			data := content(3)
			d := put(t, s, data)
			damage(t, s.file(rawDigest(d)))
			if _, err := readBlob(t, s, d); !errors.Is(err, store.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("read: %v", err)
			}
			put(t, s, data)
			if got, err := readBlob(t, s, d); err != nil || !bytes.Equal(got, data) {
				t.Errorf("put again: %d bytes, %v", len(got), err)
			}
		})
	}
	t.Run("in the database", func(t *testing.T) {
		s, _ := withSession(t)
		d := put(t, s, content(1))
		execute(t, s, "UPDATE blob SET content = ?", []byte("something else"))
		if _, err := readBlob(t, s, d); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("read: %v", err)
		}
	})
}

func TestAFileThatIsNoDatabaseOrNewerIsRefused(t *testing.T) {
	s, dir := withSession(t)
	fill(t, s, 3)
	execute(t, s, "PRAGMA user_version = 99")
	_, err := Open(t.Context(), dir)
	if !errors.Is(err, store.ErrNewer) || !strings.Contains(err.Error(), "99") {
		t.Errorf("a newer version: %v", err)
	}
	execute(t, s, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)))
	check(t, opened(t, dir), 3)

	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, Database), bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), other); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("no database: %v", err)
	}
}

func TestAnOlderVersionIsMigrated(t *testing.T) {
	s, dir := withSession(t)
	fill(t, s, 3)
	next := append(migrations[:len(migrations):len(migrations)], "CREATE TABLE new (x); INSERT INTO new VALUES (7)")
	if _, err := (Config{}).open(t.Context(), dir, busyTimeout, append(next[:len(next):len(next)], "INSERT INTO nowhere VALUES (1)")); err == nil {
		t.Fatal("a migration that fails")
	}
	check(t, opened(t, dir), 3) // nothing has changed
	newer, err := (Config{}).open(t.Context(), dir, busyTimeout, next)
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Close()
	check(t, newer, 3)
	if n, err := versionOf(t.Context(), newer.r); err != nil || n != len(next) {
		t.Errorf("version %d, %v", n, err)
	}
	if _, err := Open(t.Context(), dir); !errors.Is(err, store.ErrNewer) {
		t.Errorf("the old program: %v", err)
	}
}

func TestAnEmptyDatabaseBesideBlobsIsRefused(t *testing.T) {
	s, dir := withSession(t)
	d := put(t, s, content(3))
	execute(t, s, "PRAGMA wal_checkpoint(TRUNCATE)")
	file := s.file(rawDigest(d))
	for i, damage := range []func(string) error{func(name string) error { return os.Truncate(name, 0) }, os.Remove} {
		if err := damage(filepath.Join(dir, Database)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), dir); !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "restore it from a backup") {
			t.Errorf("open: %v", err)
		}
		if _, err := (Config{ReadOnly: true}).Open(t.Context(), dir); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("open to read: %v", err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(filepath.Join(dir, Database)); err == nil && i > 0 {
			t.Errorf("a database of %d bytes was made", info.Size())
		}
	}
	// A store of small files has no blobs.
	if err := os.RemoveAll(filepath.Join(dir, blobFolder)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("without blobs: %v", err)
	}
}

// A damaged record is of an ID that can be removed, and no other one is affected.
func TestADamagedRecordIsListedAndRemovedAlone(t *testing.T) {
	for _, damage := range []string{
		"UPDATE session SET record = '{' WHERE id = 's'",
		"UPDATE session SET record = 'secret' WHERE id = 's'",
		"UPDATE session SET created = x'736563726574' WHERE id = 's'",
		"UPDATE session SET last_seq = 'secret' WHERE id = 's'",
		"UPDATE large SET config = 'secret' WHERE session = (SELECT n FROM session WHERE id = 's')",
	} {
		t.Run(damage, func(t *testing.T) {
			s, _ := withSession(t)
			if err := s.Create(t.Context(), store.Record{ID: "whole", Agent: "script"}); err != nil {
				t.Fatal(err)
			}
			put(t, s, content(1))
			execute(t, s, damage)
			var got []string
			for r, err := range s.List(t.Context(), store.Filter{Agent: "script"}) {
				if corrupt := errors.Is(err, store.ErrCorrupt); corrupt != (r.ID == "s") || strings.Contains(fmt.Sprint(err), "secret") {
					t.Errorf("session %q: %v", r.ID, err)
				}
				got = append(got, r.ID)
			}
			if fmt.Sprint(got) != "[whole s]" {
				t.Errorf("listed %q", got)
			}
			if _, err := s.Load(t.Context(), "s"); !errors.Is(err, store.ErrCorrupt) || strings.Contains(err.Error(), "secret") {
				t.Errorf("load: %v", err)
			}
			if err := s.Create(t.Context(), store.Record{ID: "s"}); !errors.Is(err, fs.ErrExist) {
				t.Errorf("create: %v", err)
			}
			unlock, err := s.Lock(t.Context(), "s")
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Delete(t.Context(), "s"), unlock()); err != nil {
				t.Error(err)
			}
			if _, err := s.Load(t.Context(), "s"); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("load after delete: %v", err)
			}
		})
	}
}

func TestAnEventOfAnotherTypeIsDamage(t *testing.T) {
	for _, column := range []string{"own", "envelope", "payload", "sum"} {
		s, _ := withSession(t)
		fill(t, s, 2)
		execute(t, s, "UPDATE event SET "+column+" = CASE typeof("+column+") WHEN 'text' THEN x'736563726574' ELSE 'secret' END WHERE seq = 2")
		var got error
		for _, err := range s.Events(t.Context(), "s", 1) {
			got = err
		}
		if !errors.Is(got, store.ErrCorrupt) || !strings.Contains(got.Error(), "event 2") || strings.Contains(got.Error(), "secret") {
			t.Errorf("%s: %v", column, got)
		}
	}
}

func TestALockedDatabaseIsBusyUntilItIsReleased(t *testing.T) {
	s, dir := withSession(t)
	fill(t, s, 1)
	short, err := (Config{}).open(t.Context(), dir, 10*time.Millisecond, migrations)
	if err != nil {
		t.Fatal(err)
	}
	defer short.Close()
	tx, err := s.w.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := short.Append(t.Context(), "s", numbered(2)); !errors.Is(err, store.ErrBusy) {
		t.Errorf("append: %v", err)
	}
	check(t, short, 1) // readers do not wait
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error)
	go func() { waits <- s.Append(ctx, "s", numbered(2)) }()
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("a wait within the program whose context ends: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := short.Append(t.Context(), "s", numbered(2)); err != nil {
		t.Error(err)
	}
	check(t, s, 2)
}

func TestCollectRemovesOrphans(t *testing.T) {
	s, dir := withSession(t)
	kept := put(t, s, content(3))
	// Orphan of a program that was killed between the rename of the file and the end of the
	// transaction.
	orphan := s.file(rawDigest(blobOf(content(6))))
	if err := os.MkdirAll(filepath.Dir(orphan), 0o700); err != nil {
		t.Fatal(err)
	}
	// A file whose writer was killed, and a file that is being written.
	old, fresh := filepath.Join(dir, tmpFolder, "blob-1"), filepath.Join(dir, tmpFolder, "blob-2")
	for _, name := range []string{orphan, old, fresh} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-2 * abandoned)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	// Orphan of a program that was killed between the two steps of Delete.
	execute(t, s, "INSERT INTO blob (digest, content) VALUES (?, x'00')", make([]byte, 32))
	for _, dry := range []bool{true, false} {
		if got, err := s.Collect(t.Context(), dry); err != nil || len(got) != 3 {
			t.Errorf("removed %q, %v", got, err)
		}
	}
	for name, there := range map[string]bool{orphan: false, old: false, fresh: true, s.file(rawDigest(kept)): true} {
		if _, err := os.Stat(name); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := s.Collect(t.Context(), false); err != nil || len(got) != 0 {
		t.Errorf("the second time %q, %v", got, err)
	}
	if got, err := readBlob(t, s, kept); err != nil || !bytes.Equal(got, content(3)) {
		t.Errorf("the blob that is needed: %d bytes, %v", len(got), err)
	}
}

func TestNothingIsLeftOfDeletedSessionsAndNobodyElseCanReadTheRest(t *testing.T) {
	s, dir := withSession(t)
	fill(t, s, 10)
	put(t, s, content(1))
	put(t, s, content(3))
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Stat(name)
		if err == nil && name != dir && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"session", "event", "blob", "session_blob"} {
		var n int
		if err := s.r.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows in %s, %v", n, table, err)
		}
	}
	if _, err := os.Stat(s.file(rawDigest(blobOf(content(3))))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of the blob: %v", err)
	}
}
