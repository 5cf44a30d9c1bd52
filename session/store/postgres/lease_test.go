package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testpostgres"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// short is a lease that a test can wait for.
const short = 500 * time.Millisecond

func numbered(seq uint64) runnerscripts.Event {
	return runnerscripts.Event{Seq: seq, Type: runnerscripts.TypeAgentMessage, Time: time.Now(), Payload: []byte(`{}`)}
}

// locked returns a new session of a store, locked.
func locked(t *testing.T, s *Store) (unlock func() error) {
	t.Helper()
	if err := s.Create(t.Context(), store.Record{ID: "s", CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	unlock, err := s.Lock(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	return unlock
}

// dies ends the renewing of leases, as the death of the program does.
func dies(s *Store) {
	s.stop()
	s.renewed.Wait()
	s.stopped, s.stop = context.WithCancel(context.WithoutCancel(s.stopped)) // its calls still wait for the database
}

// eventually calls f until it returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(30 * time.Second)
	for !f() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s: it does not happen", what)
		}
	}
}

// takes locks the session as soon as its lease has expired.
func takes(t *testing.T, s *Store) (unlock func() error) {
	t.Helper()
	eventually(t, "the lease expires", func() bool {
		var err error
		unlock, err = s.Lock(t.Context(), "s")
		if err != nil && !errors.Is(err, store.ErrLocked) {
			t.Fatal(err)
		}
		return err == nil
	})
	return unlock
}

func TestTheLeaseOfALivingProgramStays(t *testing.T) {
	t.Parallel()
	url := testpostgres.URL(t)
	a, b := opened(t, Config{Name: "http://a", lease: short}, url), opened(t, Config{lease: short}, url)
	unlock := locked(t, a)
	var expires, later time.Time
	read := func(to *time.Time) {
		t.Helper()
		if err := b.pool.QueryRow(t.Context(), "SELECT expires FROM lease").Scan(to); err != nil {
			t.Fatal(err)
		}
	}
	read(&expires)
	eventually(t, "the lease is renewed for longer than it lasts", func() bool {
		read(&later)
		return later.Sub(expires) > 2*short
	})
	if _, err := b.Lock(t.Context(), "s"); !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), "http://a") {
		t.Errorf("locked by another program: %v", err)
	}
	for s, want := range map[*Store]string{a: "", b: "http://a"} {
		if got, err := s.Owner(t.Context(), "s"); err != nil || got != want {
			t.Errorf("the owner is %q, %v; want %q", got, err, want)
		}
	}
	if ids, err := b.Abandoned(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("abandoned: %q, %v", ids, err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Owner(t.Context(), "s"); err != nil || got != "" {
		t.Errorf("the owner of a session that was unlocked is %q, %v", got, err)
	}
	if err := takes(t, b)(); err != nil {
		t.Error(err)
	}
}

func TestAProgramThatLostItsLeaseChangesNothing(t *testing.T) {
	t.Parallel()
	url := testpostgres.URL(t)
	a, b := opened(t, Config{lease: short}, url), opened(t, Config{lease: short}, url)
	unlock := locked(t, a)
	digest, err := store.PutBlob(t.Context(), a, "s", strings.NewReader("content"))
	if err != nil {
		t.Fatal(err)
	}
	dies(a)
	eventually(t, "the session is abandoned", func() bool {
		ids, err := b.Abandoned(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.Equal(ids, []string{"s"})
	})
	if err := a.Append(t.Context(), "s", numbered(1)); err != nil {
		t.Errorf("with a lease that no other program has wanted: %v", err)
	}
	other := takes(t, b)
	_, put := store.PutBlob(t.Context(), a, "s", strings.NewReader("new"))
	for op, err := range map[string]error{
		"append": a.Append(t.Context(), "s", numbered(2)), "put": put,
		"update": a.Update(t.Context(), "s", func(r *store.Record) { r.Title = "new" }),
		"remove": a.RemoveBlobs(t.Context(), "s", digest), "delete": a.Delete(t.Context(), "s"),
	} {
		if !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: %v, want %v", op, err, store.ErrConflict)
		}
	}
	r, err := b.Load(t.Context(), "s")
	if err != nil || r.LastSeq != 1 || r.Title != "" {
		t.Errorf("%+v, %v", r, err)
	}
	if lost := a.Lost(); len(lost) > 0 {
		t.Errorf("lost before it could know: %q", lost)
	}
	if err := a.renew(t.Context()); err != nil || !slices.Equal(a.Lost(), []string{"s"}) {
		t.Errorf("lost: %q, %v", a.Lost(), err)
	}
	if err := unlock(); err != nil || len(a.Lost()) > 0 {
		t.Errorf("after it gave up: %q, %v", a.Lost(), err)
	}
	if owner, err := a.Owner(t.Context(), "s"); err != nil || owner != b.name {
		t.Errorf("to unlock a lost lease took that of %q, %v", owner, err)
	}
	if err := b.Append(t.Context(), "s", numbered(2)); err != nil {
		t.Error(err)
	}
	if err := other(); err != nil {
		t.Error(err)
	}
	if err := takes(t, a)(); err != nil { // a lease is no life sentence
		t.Error(err)
	}
}

// After the database was away the programs that live have the first word.
func TestAfterAFailureNothingIsAbandonedAtOnce(t *testing.T) {
	t.Parallel()
	db := testpostgres.URL(t)
	s := opened(t, Config{lease: time.Hour}, db)
	locked(t, s)
	s.steady = time.Now().Add(-time.Hour)
	if _, err := s.pool.Exec(t.Context(), "UPDATE lease SET expires = now()"); err != nil {
		t.Fatal(err)
	}
	if ids, err := s.Abandoned(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("%q, %v", ids, err)
	}
	s.steady = time.Now()
	if ids, err := s.Abandoned(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("%q, %v", ids, err)
	}
}
