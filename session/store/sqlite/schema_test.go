package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

func TestTheFirstVersionIsMigrated(t *testing.T) {
	dir := t.TempDir()
	old, err := (Config{}).open(t.Context(), dir, busyTimeout, migrations[:1])
	if err != nil {
		t.Fatal(err)
	}
	fill := `INSERT INTO session (id, parent, created, updated, last_seq, stored, record, config, state, state_seq)
		VALUES ('s', 'p', '2026-01-02T03:04:05Z', '2026-01-02T03:04:06Z', 1, 1, '{"agent":"x"}', CAST('{"c":1}' AS BLOB), CAST('{"s":1}' AS BLOB), 1)`
	if _, err := old.w.ExecContext(t.Context(), fill); err != nil {
		t.Fatal(err)
	}
	// A program of the first version that drives a session could not go on after the migration.
	lease, err := os.Create(old.lockFile("s"))
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := tryLock(lease); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := Open(t.Context(), dir); !errors.Is(err, store.ErrBusy) || !strings.Contains(err.Error(), "end it first") {
		t.Errorf("while a session is driven: %v", err)
	}
	digest := make([]byte, 32)
	execute(t, old, "INSERT INTO blob (digest) VALUES (?)", digest)
	file := old.file(digest)
	if err := errors.Join(lease.Close(), os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, make([]byte, 1<<20), 0o600), old.Close()); err != nil {
		t.Fatal(err)
	}
	s := opened(t, dir)
	if size, err := s.size(t.Context()); err != nil || size < 1<<20 {
		t.Errorf("the store has %d bytes, %v", size, err)
	}
	r, err := s.Load(t.Context(), "s")
	if err != nil || r.Agent != "x" || r.Parent != "p" || string(r.Config) != `{"c":1}` || string(r.State) != `{"s":1}` || r.StateSeq != 1 || r.LastSeq != 1 {
		t.Errorf("record %+v, %v", r, err)
	}
}
