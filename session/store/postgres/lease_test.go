package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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
	a, b := opened(t, Config{Name: "http://a"}, url), opened(t, Config{}, url)
	unlock := locked(t, a)
	var expires, later time.Time
	read := func(to *time.Time) {
		t.Helper()
		if err := b.pool.QueryRow(t.Context(), "SELECT expires FROM lease").Scan(to); err != nil {
			t.Fatal(err)
		}
	}
	read(&expires)
	eventually(t, "the lease is renewed", func() bool {
		read(&later)
		return later.After(expires)
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
	a, b := opened(t, Config{lease: short}, url), opened(t, Config{}, url)
	b.steady = time.Now().Add(-time.Hour)
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
	if lost := a.Lost(); !slices.Equal(lost, []string{"s"}) {
		t.Errorf("a program that has not reached the database for so long goes on with %q", lost)
	}
	renews := func() {
		eventually(t, "the database answers in time", func() bool { return a.renew(t.Context()) == nil })
	}
	eventually(t, "its leases are sure again", func() bool { // which they are for half a second
		renews()
		return len(a.Lost()) == 0
	})
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
	if renews(); !slices.Equal(a.Lost(), []string{"s"}) {
		t.Errorf("lost: %q", a.Lost())
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
	if ids, err := s.Abandoned(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("its own: %q, %v", ids, err)
	}
	if _, err := s.Lock(t.Context(), "s"); !errors.Is(err, store.ErrLocked) {
		t.Errorf("its own lease, which has expired, a second time: %v", err)
	}
	if _, err := s.pool.Exec(t.Context(), "UPDATE lease SET owner = 'another'"); err != nil {
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

// A change that has begun is made before another program has the session, or it is refused.
func TestALockWaitsForAChangeThatHasBegun(t *testing.T) {
	t.Parallel()
	url := testpostgres.URL(t)
	a, b := opened(t, Config{lease: time.Hour}, url), opened(t, Config{}, url)
	locked(t, a)
	got := make(chan error, 1)
	err := a.transact(t.Context(), "append", "s", func(ctx context.Context, tx pgx.Tx) error {
		h, err := headOf(ctx, tx, "s", forChange)
		if err == nil {
			err = a.fenced(ctx, tx, "s", h.n)
		}
		if err != nil {
			return err
		}
		if _, err := a.pool.Exec(ctx, "UPDATE lease SET expires = now()"); err != nil {
			return err
		}
		go func() {
			_, err := b.Lock(context.WithoutCancel(ctx), "s")
			got <- err
		}()
		eventually(t, "the other program waits", func() bool { return len(got) > 0 || waits(t, a) })
		if len(got) > 0 {
			t.Error("another program had the session within a change")
		}
		events := []runnerscripts.Event{numbered(1)}
		r, err := encode("s", events)
		if err != nil {
			return err
		}
		return r.append(ctx, tx, h, events[0].Time)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if err := a.Append(t.Context(), "s", numbered(2)); !errors.Is(err, store.ErrConflict) {
		t.Errorf("the first program after that: %v", err)
	}
	if err := b.Append(t.Context(), "s", numbered(2)); err != nil {
		t.Error(err)
	}
}

// waits reports whether a connection to the database waits for a lock.
func waits(t *testing.T, s *Store) (yes bool) {
	t.Helper()
	if err := s.leases.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FROM session WHERE id = $1 FOR NO KEY UPDATE')").Scan(&yes); err != nil {
		t.Fatal(err)
	}
	return yes
}

// A blob that one session removes while another one puts it stays for that one.
func TestABlobThatIsPutWhileItIsRemovedStays(t *testing.T) {
	t.Parallel()
	url := testpostgres.URL(t)
	a, b := opened(t, Config{}, url), opened(t, Config{}, url)
	locked(t, a)
	digest, err := store.PutBlob(t.Context(), a, "s", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	u := &upload{s: b, id: "another"}
	if _, err := u.add(t.Context(), strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if err := u.send(t.Context()); err != nil { // which found it there
		t.Fatal(err)
	}
	if err := a.RemoveBlobs(t.Context(), "s", digest); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := a.pool.QueryRow(t.Context(), "SELECT count(*) FROM piece").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d pieces of a blob that is being put, %v", n, err)
	}
	if err := u.drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.pool.QueryRow(t.Context(), "SELECT count(*) FROM blob").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d blobs that no session has, %v", n, err)
	}
}
