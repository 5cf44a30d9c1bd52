package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/agentenv-dev/agentenv/session/store"
)

// A deletion takes two steps. The first one takes the session out of sight, durably: its ID becomes
// a number as bytes, which no other ID is. The second one removes what belongs to it, in
// transactions that other programs need not wait for and that a nearly full disk has room for. If
// the program dies meanwhile, Collect goes on.
const (
	hide   = "UPDATE session SET id = CAST(n AS BLOB) WHERE id = ? RETURNING n"
	hidden = "SELECT n FROM session WHERE typeof(id) = 'blob'"
)

// purgedAtOnce is how many events, blobs or pages are removed in one transaction.
const purgedAtOnce = 1000

// Delete removes a session and gives the room that it took back to the file system, but for a few
// MiB that are used again. If it fails with an error other than store.ErrNotFound, the session may be
// gone, and Collect removes the rest.
func (s *Store) Delete(ctx context.Context, id string) error {
	var found []int64
	err := s.withReserve(func() error {
		return s.transact(ctx, true, func(ctx context.Context, tx *sql.Tx) (err error) {
			if found, err = numbers(ctx, tx, hide, id); err == nil && len(found) == 0 {
				err = store.ErrNotFound
			}
			return err
		})
	})
	if err == nil {
		ctx := context.WithoutCancel(ctx)
		err = s.withReserve(func() error {
			if err := s.purge(ctx, found); err != nil {
				return err
			}
			return s.shrink(ctx, purgedAtOnce, "PASSIVE")
		})
	}
	return s.failure("delete", id, err)
}

// purge removes what belongs to hidden sessions. No session needs the files that it removes, whether
// the transaction succeeds or not.
func (s *Store) purge(ctx context.Context, sessions []int64) error {
	for _, n := range sessions {
		err := s.inSteps(ctx, func(ctx context.Context, tx *sql.Tx) (more bool, err error) {
			done, err := tx.ExecContext(ctx, "DELETE FROM event WHERE session = ?1 AND seq <= "+
				"(SELECT max(seq) FROM (SELECT seq FROM event WHERE session = ?1 ORDER BY seq LIMIT ?2))", n, purgedAtOnce)
			if err != nil {
				return false, err
			}
			count, err := done.RowsAffected()
			return count > 0, err
		})
		if err == nil {
			err = s.inSteps(ctx, func(ctx context.Context, tx *sql.Tx) (more bool, err error) {
				blobs, err := numbers(ctx, tx, "DELETE FROM session_blob WHERE session = ?1 AND blob IN "+
					"(SELECT blob FROM session_blob WHERE session = ?1 ORDER BY blob LIMIT ?2) RETURNING blob", n, purgedAtOnce)
				if err == nil {
					err = s.removeUnused(ctx, tx, blobs)
				}
				return len(blobs) > 0, err
			})
		}
		if err == nil {
			err = s.transact(ctx, false, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "DELETE FROM session WHERE n = ?", n)
				return err
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inSteps runs a step, each in its own transaction, as long as there is more.
func (s *Store) inSteps(ctx context.Context, step func(context.Context, *sql.Tx) (more bool, err error)) error {
	for more := true; more; {
		err := s.transact(ctx, false, func(ctx context.Context, tx *sql.Tx) (err error) {
			more, err = step(ctx, tx)
			return err
		})
		if err == nil {
			err = s.spare(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// spare empties the write-ahead log on a disk that is nearly full.
func (s *Store) spare(ctx context.Context) error {
	free, _, err := room(s.dir)
	if err != nil || free > spareRoom {
		return err
	}
	_, err = s.w.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}

// numbers returns the single column of a query.
func numbers(ctx context.Context, q querier, query string, args ...any) (all []int64, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, rows.Err()
}
