package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentenv-dev/agentenv/session/store"
)

// columns are the columns that scanRecord reads.
const columns = "n, id, parent, created, updated, last_seq, record, config, state_seq"

// scanRecord reads a row.
func scanRecord(row pgx.Row, more ...any) (n int64, r store.Record, err error) {
	var id, parent, rest, config []byte
	var created, updated string
	var last, stateSeq int64
	if err := row.Scan(append([]any{&n, &id, &parent, &created, &updated, &last, &rest, &config, &stateSeq}, more...)...); err != nil {
		return 0, store.Record{}, missing(err)
	}
	err = json.Unmarshal(rest, &r)
	if err == nil {
		r.CreatedAt, err = time.Parse(time.RFC3339Nano, created)
	}
	if err == nil {
		r.UpdatedAt, err = time.Parse(time.RFC3339Nano, updated)
	}
	if err != nil { // which may quote what is stored
		return n, store.Record{ID: string(id)}, fmt.Errorf("%w: the record of session %q", store.ErrCorrupt, id)
	}
	r.ID, r.Parent, r.LastSeq, r.Config, r.StateSeq = string(id), string(parent), uint64(last), config, uint64(stateSeq)
	return n, r, nil
}

// missing returns store.ErrNotFound for a row that is missing.
func missing(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return store.ErrNotFound
	}
	return err
}

// find returns the record of a session, and its number. locking is empty, or how the row is locked.
func find(ctx context.Context, q querier, id, locking string) (int64, store.Record, error) {
	var state []byte
	n, r, err := scanRecord(q.QueryRow(ctx, "SELECT "+columns+", state FROM session WHERE id = $1 "+locking, []byte(id)), &state)
	r.State = state
	return n, r, err
}

// querier is a transaction or the pool.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// head is what most methods need of a session.
type head struct {
	n       int64  // its number
	last    uint64 // Seq of its last event
	created string
}

// The locks of a session's row. A change of the log or the record has forChange, so that it comes either
// before another program acquires the lease or finds that out.
const (
	unlocked  = ""
	forRead   = "FOR SHARE"
	forChange = "FOR NO KEY UPDATE"
	forDelete = "FOR UPDATE"
)

func headOf(ctx context.Context, q querier, id, locking string) (h head, err error) {
	err = q.QueryRow(ctx, "SELECT n, last_seq, created FROM session WHERE id = $1 "+locking, []byte(id)).Scan(&h.n, &h.last, &h.created)
	return h, missing(err)
}

// rest returns the JSON of the record fields without their own column.
func rest(r store.Record) ([]byte, error) {
	r.ID, r.Parent, r.LastSeq, r.Config, r.State, r.StateSeq = "", "", 0, nil, nil, 0
	r.CreatedAt, r.UpdatedAt = time.Time{}, time.Time{}
	return json.Marshal(r)
}

func stamp(t time.Time) string { return t.Format(time.RFC3339Nano) }

// insert adds a session and returns its number.
func insert(ctx context.Context, tx pgx.Tx, r store.Record) (n int64, err error) {
	if r.ID == "" {
		return 0, fmt.Errorf("%w: the session has no ID; give it one", fs.ErrInvalid)
	}
	data, err := rest(r)
	if err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, `INSERT INTO session (id, parent, created, updated, last_seq, stored, record, config, state, state_seq)
		VALUES ($1, $2, $3, $4, $5, nextval('changes'), $6, $7, $8, $9) RETURNING n`,
		[]byte(r.ID), []byte(r.Parent), stamp(r.CreatedAt), stamp(r.UpdatedAt), int64(r.LastSeq), data,
		[]byte(r.Config), []byte(r.State), int64(r.StateSeq)).Scan(&n)
	return n, err
}

// Create adds a session.
func (s *Store) Create(ctx context.Context, r store.Record) error {
	r.LastSeq, r.UpdatedAt = 0, r.CreatedAt
	return s.transact(ctx, "create", r.ID, func(ctx context.Context, tx pgx.Tx) error {
		_, err := insert(ctx, tx, r)
		return err
	})
}

// Load returns a session's record.
func (s *Store) Load(ctx context.Context, id string) (r store.Record, err error) {
	err = s.patiently(ctx, "load", id, func(ctx context.Context) (err error) {
		_, r, err = find(ctx, s.pool, id, unlocked)
		return err
	})
	if err != nil {
		return store.Record{}, err
	}
	return r, nil
}

// Update changes a session's record.
func (s *Store) Update(ctx context.Context, id string, change func(*store.Record)) error {
	return s.transact(ctx, "update", id, func(ctx context.Context, tx pgx.Tx) error {
		n, r, err := find(ctx, tx, id, forChange)
		if err == nil {
			err = s.fenced(ctx, tx, id, n)
		}
		if err != nil {
			return err
		}
		change(&r)
		data, err := rest(r)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE session SET record = $2, config = $3, state = $4, state_seq = $5 WHERE n = $1",
			n, data, []byte(r.Config), []byte(r.State), int64(r.StateSeq))
		return err
	})
}

// List returns the matching records, most recently extended log first.
func (s *Store) List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		type listed struct {
			r   store.Record
			err error
		}
		var all []listed
		// All are read before the first is yielded: the loop may take its time, and write.
		err := s.patiently(ctx, "list", "", func(ctx context.Context) error {
			all = nil
			rows, err := s.pool.Query(ctx, "SELECT "+columns+" FROM session ORDER BY stored DESC")
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() && (f.Limit <= 0 || len(all) < f.Limit) {
				_, r, err := scanRecord(rows)
				switch {
				case errors.Is(err, store.ErrCorrupt):
					all = append(all, listed{r, &store.Error{Op: "list", ID: r.ID, Err: err}})
				case err != nil:
					return err
				case f.Matches(r):
					all = append(all, listed{r, nil})
				}
			}
			rows.Close()
			return rows.Err()
		})
		if err != nil {
			yield(store.Record{}, err)
			return
		}
		for _, l := range all {
			if !yield(l.r, l.err) {
				return
			}
		}
	}
}

// Delete removes a session.
func (s *Store) Delete(ctx context.Context, id string) error {
	err := s.retry(ctx, uploadTime, "delete", id, func(ctx context.Context) error { return s.once(ctx, s.pool, uploadTime, s.remove(id)) })
	if err == nil {
		s.mu.Lock()
		delete(s.held, id) // a session that gets the ID has another lease
		s.mu.Unlock()
	}
	return err
}

func (s *Store) remove(id string) func(ctx context.Context, tx pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		h, err := headOf(ctx, tx, id, forDelete)
		if err == nil {
			err = s.fenced(ctx, tx, id, h.n)
		}
		if err != nil {
			return err
		}
		blobs, err := numbers(ctx, tx, "DELETE FROM session_blob WHERE session = $1 RETURNING blob", h.n)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "DELETE FROM session WHERE n = $1", h.n); err != nil {
			return err
		}
		return collect(ctx, tx, blobs)
	}
}

// numbers returns a column of numbers.
func numbers(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]int64, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// Fork adds a session with the beginning of another session's log, and its blobs.
func (s *Store) Fork(ctx context.Context, from string, last uint64, r store.Record) error {
	return s.transact(ctx, "fork", from, func(ctx context.Context, tx pgx.Tx) error {
		old, err := headOf(ctx, tx, from, forRead)
		if err != nil {
			return err
		}
		if last > old.last {
			return fmt.Errorf("%w: there is no event %d; the last one is %d", fs.ErrInvalid, last, old.last)
		}
		r.Parent, r.LastSeq, r.UpdatedAt = from, last, r.CreatedAt
		if last > 0 {
			events, err := readEvents(ctx, tx, old.n, from, last, last)
			if err != nil {
				return err
			}
			r.UpdatedAt = latest(events[0].Time, r.CreatedAt)
		}
		n, err := insert(ctx, tx, r)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO event (session, seq, own, envelope, payload)
			SELECT $1, seq, own, envelope, payload FROM event WHERE session = $2 AND seq <= $3`, n, old.n, int64(last))
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO session_blob (session, blob, seq) SELECT $1, blob, seq
			FROM session_blob JOIN blob ON blob.n = blob WHERE session = $2 AND seq < $3 ORDER BY digest`, n, old.n, int64(last))
		return err
	})
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
