package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentenv-dev/agentenv/session/store"
)

// lease is a lease that this store has, or had and has not released.
type lease struct {
	fence int64     // its number
	since time.Time // when it was acquired
}

// acquiring stands in place of the number of a lease that a call of Lock is about to acquire.
const acquiring = 0

// Lock acquires the lease of a session. It is renewed until unlock is called.
func (s *Store) Lock(ctx context.Context, id string) (unlock func() error, err error) {
	s.mu.Lock()
	_, held := s.held[id]
	if !held {
		s.held[id] = lease{}
	}
	s.mu.Unlock()
	if held { // even if the lease has expired or was lost: its holder must release it first
		return nil, &store.Error{Op: "lock", ID: id, Err: fmt.Errorf("%w by %s", store.ErrLocked, s.name)}
	}
	var fence int64
	var since time.Time // before the database counts its time
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held[id] = lease{fence, since}
		if err != nil {
			delete(s.held, id)
		}
	}()
	err = s.transact(ctx, "lock", id, func(ctx context.Context, tx pgx.Tx) error {
		h, err := headOf(ctx, tx, id, forChange)
		if err != nil {
			return err
		}
		since = time.Now()
		err = tx.QueryRow(ctx, `INSERT INTO lease (session, owner, name, fence, expires)
			VALUES ($1, $2, $3, nextval('fences'), clock_timestamp() + $4::interval)
			ON CONFLICT (session) DO UPDATE SET owner = excluded.owner, name = excluded.name, fence = excluded.fence, expires = excluded.expires
			WHERE lease.expires <= clock_timestamp() OR lease.owner = excluded.owner RETURNING fence`, h.n, s.owner, s.name, s.leaseTime).Scan(&fence)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		var owner string
		if err := tx.QueryRow(ctx, "SELECT name FROM lease WHERE session = $1", h.n).Scan(&owner); err != nil {
			return err
		}
		return fmt.Errorf("%w by %s", store.ErrLocked, owner)
	})
	if err != nil {
		return nil, err
	}
	work := context.WithoutCancel(ctx)
	return sync.OnceValue(func() error { return s.unlock(work, id, fence) }), nil
}

func (s *Store) unlock(ctx context.Context, id string, fence int64) error {
	s.mu.Lock()
	if s.held[id].fence == fence {
		delete(s.held, id)
		delete(s.lost, id)
	}
	s.mu.Unlock()
	return s.transact(ctx, "unlock", id, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "DELETE FROM lease WHERE owner = $1 AND fence = $2", s.owner, fence)
		return err
	})
}

// fenced returns store.ErrConflict if this store had the lease of a session and has lost it. The session's
// row is locked, so no other program acquires the lease before the transaction ends.
func (s *Store) fenced(ctx context.Context, tx pgx.Tx, id string, n int64) error {
	s.mu.Lock()
	fence := s.held[id].fence
	s.mu.Unlock()
	if fence == acquiring { // or it has none
		return nil
	}
	var own bool
	err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM lease WHERE session = $1 AND owner = $2 AND fence = $3)", n, s.owner, fence).Scan(&own)
	if err == nil && !own {
		err = fmt.Errorf("%w: this one did not renew its lease in time", store.ErrConflict)
	}
	return err
}

// Owner returns the name of the other program that has the lease of a session.
func (s *Store) Owner(ctx context.Context, id string) (name string, err error) {
	err = s.patiently(ctx, "look at the lease", id, func(ctx context.Context) error {
		err := s.pool.QueryRow(ctx, `SELECT name FROM lease JOIN session ON n = session
			WHERE id = $1 AND owner <> $2 AND expires > clock_timestamp()`, []byte(id), s.owner).Scan(&name)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return name, err
}

// Abandoned returns the sessions of other programs whose lease has expired. After a failure of the database it waits until the
// programs that live have renewed theirs.
func (s *Store) Abandoned(ctx context.Context) (ids []string, err error) {
	s.mu.Lock()
	steady := s.steady
	s.mu.Unlock()
	if time.Since(steady) < s.leaseTime/2 {
		return nil, nil
	}
	err = s.patiently(ctx, "look at the leases", "", func(ctx context.Context) error {
		rows, err := s.pool.Query(ctx, "SELECT id FROM lease JOIN session ON n = session WHERE expires <= clock_timestamp() AND owner <> $1 ORDER BY expires", s.owner)
		if err != nil {
			return err
		}
		raw, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		ids = nil
		for _, id := range raw {
			ids = append(ids, string(id))
		}
		return err
	})
	return ids, err
}

// Lost returns the sessions whose leases were lost, or have expired because the database is away, and not released.
func (s *Store) Lost() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id, l := range s.held {
		unsure := time.Since(s.renews) > s.leaseTime && time.Since(l.since) > s.leaseTime
		if l.fence != acquiring && (unsure || s.lost[id]) {
			ids = append(ids, id)
		}
	}
	return ids
}

// renewAll renews the leases until ctx is done.
func (s *Store) renewAll(ctx context.Context) {
	tick := time.NewTicker(s.leaseTime / renewals)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := s.renew(ctx); err != nil {
			s.mu.Lock()
			s.steady = time.Now()
			s.mu.Unlock()
		}
	}
}

// renew renews the leases once, and notes those that another program has acquired. One that has expired is
// still this program's if no other has wanted it.
func (s *Store) renew(ctx context.Context) error {
	s.mu.Lock()
	before := maps.Clone(s.held) // a lease that is acquired meanwhile is not looked for
	s.mu.Unlock()
	// Without a lease, too: whether the database is there says whether other programs can renew theirs.
	var fences []int64
	for _, l := range before {
		fences = append(fences, l.fence)
	}
	ctx, cancel := context.WithTimeout(ctx, s.leaseTime/2)
	defer cancel()
	began := time.Now() // before the database counts the time of the leases
	// A row that another transaction has locked is left for the next time: it must not delay the others.
	if _, err := s.leases.Exec(ctx, `UPDATE lease SET expires = clock_timestamp() + $3::interval WHERE fence IN (
		SELECT fence FROM lease WHERE owner = $1 AND fence = ANY($2) FOR UPDATE SKIP LOCKED)`, s.owner, fences, s.leaseTime); err != nil {
		return err
	}
	rows, err := s.leases.Query(ctx, "SELECT fence FROM lease WHERE owner = $1", s.owner)
	if err != nil {
		return err
	}
	own, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renews = began
	for id, l := range before {
		if s.held[id] == l && l.fence != acquiring && !slices.Contains(own, l.fence) {
			s.lost[id] = true
		}
	}
	return nil
}
