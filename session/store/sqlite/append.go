package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// appends are the calls of Append that wait. One of the callers stores the events of all of them
// in a single transaction, which costs little more than that of one.
type appends struct {
	turn chan struct{} // held by the caller that stores

	mu      sync.Mutex
	waiting []*appending
}

// appending is one call of Append.
type appending struct {
	id      string
	events  []runnerscripts.Event
	rows    []row
	durable bool          // on the disk when it is acknowledged
	refused error         // nothing of it was stored
	done    chan struct{} // closed when err is set
	err     error
}

// row is an event as it is stored.
type row struct {
	own      bool
	envelope string
}

// Append adds events to the log of a session.
func (s *Store) Append(ctx context.Context, id string, events ...runnerscripts.Event) error {
	a := &appending{id: id, events: events, durable: s.durably(events), done: make(chan struct{})}
	err := a.encode()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && begins(events) {
		err = s.admit(ctx)
	}
	if err == nil {
		s.appends.add(a)
		select {
		case <-a.done:
		case s.appends.turn <- struct{}{}:
			s.store(ctx, a)
			<-s.appends.turn
		case <-ctx.Done():
			s.appends.withdraw(a, ctx.Err())
		}
		<-a.done
		err = a.err
	}
	return s.failure("append", id, err)
}

// encode sets the rows.
func (a *appending) encode() error {
	for _, ev := range a.events {
		r := row{own: ev.SessionID == a.id}
		ev.Seq, ev.Payload = 0, nil
		if r.own {
			ev.SessionID = ""
		}
		envelope, err := json.Marshal(ev)
		if err != nil {
			return err
		}
		r.envelope = string(envelope)
		a.rows = append(a.rows, r)
	}
	return nil
}

func (q *appends) add(a *appending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, a)
}

// take returns the waiting calls, which the caller ends: all of them, or those that need not be
// durable.
func (q *appends) take(durable bool) (taken []*appending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(a *appending) bool {
		ok := durable || !a.durable
		if ok {
			taken = append(taken, a)
		}
		return ok
	})
	return taken
}

// durable reports whether one of the waiting calls must be durable.
func (q *appends) durable() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.waiting, func(a *appending) bool { return a.durable })
}

// withdraw ends a call that still waits.
func (q *appends) withdraw(a *appending, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, a); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		a.end(err)
	}
}

// end ends a call with the error of its transaction, or with that of the call itself.
func (a *appending) end(err error) {
	a.err = cmp.Or(err, a.refused)
	close(a.done)
}

// store stores the events of own and of all calls that wait with it. ctx is that of own: it ends
// the wait for the database.
func (s *Store) store(ctx context.Context, own *appending) {
	select {
	case <-own.done:
		return // stored by another caller
	default:
	}
	durable := s.appends.durable()
	var together []*appending
	err := s.transact(ctx, durable, func(ctx context.Context, tx *sql.Tx) error {
		together = s.appends.take(durable) // now: more came while this call waited
		return s.storeAll(ctx, tx, together...)
	})
	switch {
	case err != nil && len(together) == 0 && ctx.Err() != nil:
		s.appends.withdraw(own, ctx.Err())
	case err != nil && len(together) == 0: // the database does not answer
		together = s.appends.take(true)
	case err != nil && len(together) > 1: // one of them may be to blame
		for _, a := range together {
			a.end(s.transact(context.WithoutCancel(ctx), a.durable, func(ctx context.Context, tx *sql.Tx) error {
				return s.storeAll(ctx, tx, a)
			}))
		}
		return
	}
	for _, a := range together {
		a.end(err)
	}
}

// logWriter has the statements that append events.
type logWriter struct{ find, add, count *sql.Stmt }

func (s *Store) prepare(ctx context.Context) error {
	for _, p := range []struct {
		to  **sql.Stmt
		sql string
	}{
		{&s.log.find, findHead},
		{&s.log.add, "INSERT INTO event (session, seq, own, envelope, payload, sum) VALUES (?, ?, ?, ?, ?, ?)"},
		{&s.log.count, "UPDATE session SET last_seq = ?, updated = ?, stored = " + nextStored + " WHERE n = ?"},
	} {
		var err error
		if *p.to, err = s.w.PrepareContext(ctx, p.sql); err != nil {
			return err
		}
	}
	return nil
}

// storeAll stores the events of each call, or refuses them. After an error nothing is stored.
func (s *Store) storeAll(ctx context.Context, tx *sql.Tx, all ...*appending) error {
	w := logWriter{tx.StmtContext(ctx, s.log.find), tx.StmtContext(ctx, s.log.add), tx.StmtContext(ctx, s.log.count)}
	for _, a := range all {
		if err := w.store(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// store stores the events of one call, or refuses them.
func (w logWriter) store(ctx context.Context, a *appending) error {
	a.refused = nil // by a batch that was rolled back
	h, err := scanHead(w.find.QueryRowContext(ctx, a.id), a.id)
	if err == nil {
		err = a.continues(h.last)
	}
	var created time.Time
	if err == nil {
		if created, err = time.Parse(time.RFC3339Nano, h.created); err != nil {
			err = damagedRecord(a.id)
		}
	}
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrCorrupt):
		a.refused = err
		return nil
	case err != nil || len(a.events) == 0:
		return err
	}
	for i, ev := range a.events {
		r := a.rows[i]
		payload := bytesOf(ev.Payload)
		if _, err := w.add.ExecContext(ctx, h.n, ev.Seq, r.own, r.envelope, payload, checksum(ev.Seq, r.envelope, payload)); err != nil {
			return err
		}
	}
	last := a.events[len(a.events)-1]
	_, err = w.count.ExecContext(ctx, last.Seq, stamp(latest(last.Time, created)), h.n)
	return err
}

// continues returns store.ErrConflict unless the events continue a log.
func (a *appending) continues(last uint64) error {
	for i, ev := range a.events {
		if want := last + uint64(i) + 1; ev.Seq != want {
			return fmt.Errorf("%w: event %d where %d comes next", store.ErrConflict, ev.Seq, want)
		}
	}
	return nil
}
