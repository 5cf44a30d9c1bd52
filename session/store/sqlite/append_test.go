package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

// appendTogether appends an event to each session so that all of them share a transaction, and
// returns the errors. The payload of a session's event is its ID.
func appendTogether(t *testing.T, s *Store, ids ...string) []error {
	t.Helper()
	tx, err := s.w.BeginTx(t.Context(), nil) // all wait for its end
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]chan error, len(ids))
	for i, id := range ids {
		errs[i] = make(chan error, 1)
		ev := numbered(1)
		ev.Payload = json.RawMessage(fmt.Sprintf("%q", id))
		go func() { errs[i] <- s.Append(t.Context(), id, ev) }()
		for s.waiting() < i+1 {
			runtime.Gosched()
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	all := make([]error, len(ids))
	for i := range errs {
		all[i] = <-errs[i]
	}
	return all
}

func (s *Store) waiting() int {
	s.appends.mu.Lock()
	defer s.appends.mu.Unlock()
	return len(s.appends.waiting)
}

func TestCallsThatShareATransactionAreApart(t *testing.T) {
	s := opened(t, t.TempDir())
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprint(i))
	}
	for _, id := range append(ids, "longer", "bad") {
		if err := s.Create(t.Context(), store.Record{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Append(t.Context(), "longer", numbered(1)); err != nil {
		t.Fatal(err)
	}
	commits := func() (n int) {
		if err := s.w.QueryRowContext(t.Context(), "SELECT n FROM commits").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// SQLite runs this once for each event: the rows of one transaction have the same number.
	execute(t, s, `CREATE TABLE commits (n INTEGER); INSERT INTO commits VALUES (0);
		CREATE TRIGGER counts AFTER INSERT ON event BEGIN UPDATE commits SET n = n + 1; END`)
	for i, err := range appendTogether(t, s, append(ids, "longer", "unknown")...) {
		want := error(nil)
		switch i {
		case len(ids):
			want = store.ErrConflict
		case len(ids) + 1:
			want = store.ErrNotFound
		}
		if !errors.Is(err, want) {
			t.Errorf("call %d: %v, want %v", i, err, want)
		}
	}
	if n := commits(); n != len(ids) {
		t.Errorf("%d events are stored", n)
	}
	for _, id := range ids {
		if r, err := s.Load(t.Context(), id); err != nil || r.LastSeq != 1 {
			t.Errorf("session %s: event %d, %v", id, r.LastSeq, err)
		}
	}
	// What the database refuses in one call does not fail the others.
	execute(t, s, `CREATE TRIGGER refuses BEFORE INSERT ON event WHEN NEW.payload = CAST('"bad"' AS BLOB) BEGIN SELECT RAISE(ABORT, 'no'); END`)
	if err := s.Create(t.Context(), store.Record{ID: "good"}); err != nil {
		t.Fatal(err)
	}
	if errs := appendTogether(t, s, "good", "bad"); errs[0] != nil || errs[1] == nil {
		t.Errorf("good: %v, bad: %v", errs[0], errs[1])
	}
	if r, err := s.Load(t.Context(), "good"); err != nil || r.LastSeq != 1 {
		t.Errorf("the good one has %d events, %v", r.LastSeq, err)
	}
}

func TestACallThatWaitsWithOthersEndsAlone(t *testing.T) {
	s, _ := withSession(t)
	if err := s.Create(t.Context(), store.Record{ID: "other"}); err != nil {
		t.Fatal(err)
	}
	tx, err := s.w.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error), make(chan error)
	go func() { first <- s.Append(ctx, "s", numbered(1)) }()
	for s.waiting() < 1 {
		runtime.Gosched()
	}
	go func() { second <- s.Append(t.Context(), "other", numbered(1)) }()
	for s.waiting() < 2 {
		runtime.Gosched()
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the call that was cancelled: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Errorf("the other one: %v", err)
	}
	check(t, s, 0)
}

func TestOnlyLoadAndUpdateReadTheRecord(t *testing.T) {
	s, dir := withSession(t)
	fill(t, s, 1)
	d := put(t, s, content(1))
	execute(t, s, "UPDATE session SET record = '{'; UPDATE large SET config = 7, state = 7")
	if err := s.Append(t.Context(), "s", numbered(2)); err != nil {
		t.Error(err)
	}
	put(t, s, content(2))
	if _, err := readBlob(t, s, d); err != nil {
		t.Error(err)
	}
	n := 0
	for _, err := range s.Events(t.Context(), "s", 1) {
		if err != nil {
			t.Error(err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("%d events", n)
	}
	if err := s.Fork(t.Context(), "s", 1, store.Record{ID: "fork"}); err != nil {
		t.Error(err)
	}
	unlock, err := s.Lock(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
	if _, err := s.Load(t.Context(), "s"); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("load: %v", err)
	}
	if err := s.Delete(t.Context(), "s"); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, blobFolder, "*", "*")); err != nil || len(left) != 0 {
		t.Errorf("%q, %v", left, err)
	}
}

func TestUnlockLeavesTheLockOfAnotherOwner(t *testing.T) {
	s, dir := withSession(t)
	unlock, err := s.Lock(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, lockFolder, "[0-9a-f]*[0-9a-f]"))
	if err != nil || len(files) != 1 {
		t.Fatalf("lock files %q, %v", files, err)
	}
	if err := os.Remove(files[0]); err != nil { // by hand
		t.Fatal(err)
	}
	unlockThief, err := s.Lock(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
	if _, err := s.Lock(t.Context(), "s"); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a third owner: %v", err)
	}
	if err := unlockThief(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, lockFolder)); err != nil || len(left) != 1 {
		t.Errorf("lock files %v, %v", left, err)
	}
}
