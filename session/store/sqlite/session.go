package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/session/store"
)

// querier is a transaction or the database.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// columns are the columns that scanRecord reads, of the tables in from.
const (
	columns = "n, id, parent, created, updated, last_seq, record, config, state_seq"
	from    = " FROM session LEFT JOIN large ON session = n "
)

// scanRecord reads a row. If the row is damaged, the record has its ID alone.
func scanRecord(row interface{ Scan(...any) error }, more ...any) (n int64, r store.Record, err error) {
	var id, parent, created, updated, rest string
	var config []byte
	var last, stateSeq uint64
	err = row.Scan(append([]any{
		integer(&n), text(&id), text(&parent), text(&created), text(&updated), integer(&last), text(&rest), raw(&config), integer(&stateSeq),
	}, more...)...)
	if err != nil && !errors.Is(err, errColumn) {
		return 0, store.Record{}, missing(err)
	}
	if err == nil {
		err = json.Unmarshal([]byte(rest), &r)
	}
	if err == nil {
		r.CreatedAt, err = time.Parse(time.RFC3339Nano, created)
	}
	if err == nil {
		r.UpdatedAt, err = time.Parse(time.RFC3339Nano, updated)
	}
	if err != nil { // which may quote what is stored
		return n, store.Record{ID: id}, damagedRecord(id)
	}
	r.ID, r.Parent, r.LastSeq, r.Config, r.StateSeq = id, parent, last, config, stateSeq
	return n, r, nil
}

// find returns the record of a session, and its number.
func find(ctx context.Context, q querier, id string) (int64, store.Record, error) {
	var state []byte
	n, r, err := scanRecord(q.QueryRowContext(ctx, "SELECT "+columns+", state"+from+"WHERE id = ?", id), raw(&state))
	r.State = state
	return n, r, err
}

// head is what most methods need of a session.
type head struct {
	n       int64  // its number
	last    uint64 // Seq of its last event
	created string
}

// findHead reads the head of a session, without its record.
const findHead = "SELECT n, last_seq, created FROM session WHERE id = ?"

func headOf(ctx context.Context, q querier, id string) (head, error) {
	return scanHead(q.QueryRowContext(ctx, findHead, id), id)
}

func scanHead(row *sql.Row, id string) (h head, err error) {
	err = row.Scan(integer(&h.n), integer(&h.last), text(&h.created))
	if errors.Is(err, errColumn) {
		err = damagedRecord(id)
	}
	return h, missing(err)
}

// missing returns store.ErrNotFound for a row that is missing.
func missing(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return store.ErrNotFound
	}
	return err
}

func damagedRecord(id string) error {
	return fmt.Errorf("%w: the record of session %q", store.ErrCorrupt, id)
}

// rest returns the JSON of the record fields without their own column.
func rest(r store.Record) (string, error) {
	r.ID, r.Parent, r.LastSeq, r.Config, r.State, r.StateSeq = "", "", 0, nil, nil, 0
	r.CreatedAt, r.UpdatedAt = time.Time{}, time.Time{}
	data, err := json.Marshal(r)
	return string(data), err
}

func stamp(t time.Time) string { return t.Format(time.RFC3339Nano) }

// nextStored is the SQL for the next number in the order of List.
const nextStored = "(SELECT coalesce(max(stored), 0) + 1 FROM session)"

// insert adds a session and returns its number.
func insert(ctx context.Context, tx *sql.Tx, r store.Record) (int64, error) {
	if r.ID == "" {
		return 0, fmt.Errorf("%w: the session has no ID; give it one", fs.ErrInvalid)
	}
	if _, err := headOf(ctx, tx, r.ID); err == nil || errors.Is(err, store.ErrCorrupt) {
		return 0, fs.ErrExist
	} else if !errors.Is(err, store.ErrNotFound) {
		return 0, err
	}
	text, err := rest(r)
	if err != nil {
		return 0, err
	}
	done, err := tx.ExecContext(ctx,
		`INSERT INTO session (id, parent, created, updated, last_seq, stored, record, state_seq) VALUES (?, ?, ?, ?, ?, `+nextStored+`, ?, ?)`,
		r.ID, r.Parent, stamp(r.CreatedAt), stamp(r.UpdatedAt), r.LastSeq, text, r.StateSeq)
	if err != nil {
		return 0, err
	}
	n, err := done.LastInsertId()
	if err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO large (session, config, state) VALUES (?, ?, ?)", n, bytesOf(r.Config), bytesOf(r.State))
	return n, err
}

// bytesOf converts raw JSON to a type that the driver accepts.
func bytesOf(raw json.RawMessage) []byte { return raw }

// Create adds a session.
func (s *Store) Create(ctx context.Context, r store.Record) error {
	r.LastSeq, r.UpdatedAt = 0, r.CreatedAt
	return s.write(ctx, "create", r.ID, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.admit(ctx); err != nil {
			return err
		}
		_, err := insert(ctx, tx, r)
		return err
	})
}

// Load returns a session's record.
func (s *Store) Load(ctx context.Context, id string) (store.Record, error) {
	_, r, err := find(ctx, s.r, id)
	if err != nil {
		return store.Record{}, s.failed(ctx, "load", id, err)
	}
	return r, nil
}

// failed returns the error of a read-only method.
func (s *Store) failed(ctx context.Context, op, id string, err error) error {
	if done := ctx.Err(); done != nil {
		err = done // the database reports only an interrupt
	}
	return s.failure(op, id, err)
}

// Update changes a session's record.
func (s *Store) Update(ctx context.Context, id string, change func(*store.Record)) error {
	return s.write(ctx, "update", id, func(ctx context.Context, tx *sql.Tx) error {
		n, r, err := find(ctx, tx, id)
		if err != nil {
			return err
		}
		change(&r)
		text, err := rest(r)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE session SET record = ?, state_seq = ? WHERE n = ?", text, r.StateSeq, n)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE large SET config = ?, state = ? WHERE session = ?", bytesOf(r.Config), bytesOf(r.State), n)
		return err
	})
}

// List returns the matching records, most recently extended log first.
func (s *Store) List(ctx context.Context, f store.Filter) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		// Read all records before the first is yielded: the loop may take its time, and write.
		records, err := s.matching(ctx, f)
		if err != nil {
			yield(store.Record{}, s.failed(ctx, "list", "", err))
			return
		}
		for _, r := range records {
			if err := ctx.Err(); err != nil {
				yield(store.Record{}, &store.Error{Op: "list", Err: err})
				return
			}
			if r.damage != nil {
				r.damage = &store.Error{Op: "list", ID: r.ID, Err: r.damage}
			}
			if !yield(r.Record, r.damage) {
				return
			}
		}
	}
}

// listed is a record that List yields.
type listed struct {
	store.Record
	damage error
}

// matching returns the matching records, and those that were damaged.
func (s *Store) matching(ctx context.Context, f store.Filter) ([]listed, error) {
	records, err := s.matchingRows(ctx, f, listRows+" ORDER BY stored DESC")
	if errors.Is(translate(s.dir, err), store.ErrCorrupt) { // a page is damaged
		return s.matchingSingly(ctx, f, err)
	}
	return records, err
}

// listRows selects the records of all sessions that are not being deleted.
const listRows = "SELECT " + columns + from + "WHERE typeof(id) <> 'blob'"

// matchingSingly reads one record after the other, so that a damaged page takes only its own with
// it. Numbers and IDs are in indexes, too. cause is the error of what has no ID.
func (s *Store) matchingSingly(ctx context.Context, f store.Filter, cause error) (records []listed, err error) {
	order, _ := numbers(ctx, s.r, "SELECT n FROM session ORDER BY stored DESC") // as far as it can be read
	ids, err := s.ids(ctx)
	if len(order)+len(ids) == 0 {
		return nil, cmp.Or(ctx.Err(), cause)
	}
	for n := range ids {
		if !slices.Contains(order, n) {
			order = append(order, n)
		}
	}
	lost := err != nil
	for _, n := range order {
		found, err := s.matchingRows(ctx, f, listRows+" AND n = ?", n)
		id, known := ids[n]
		switch {
		case err == nil:
			records = append(records, found...)
		case !errors.Is(translate(s.dir, err), store.ErrCorrupt):
			return nil, err
		case known:
			records = append(records, listed{store.Record{ID: id}, damagedRecord(id)})
		default:
			lost = true
		}
	}
	if f.Limit > 0 && len(records) >= f.Limit {
		return records[:f.Limit], nil
	}
	if lost {
		records = append(records, listed{damage: cause})
	}
	return records, nil
}

// ids returns the IDs of the sessions by their numbers, as far as they can be read.
func (s *Store) ids(ctx context.Context) (ids map[int64]string, err error) {
	ids = make(map[int64]string)
	rows, err := s.r.QueryContext(ctx, "SELECT n, id FROM session WHERE typeof(id) <> 'blob' ORDER BY id")
	if err != nil {
		return ids, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var n int64
		var id string
		if err := rows.Scan(integer(&n), text(&id)); err != nil {
			return ids, err
		}
		ids[n] = id
	}
	return ids, rows.Err()
}

// matchingRows returns the records that a query finds, and that match.
func (s *Store) matchingRows(ctx context.Context, f store.Filter, query string, args ...any) (records []listed, err error) {
	rows, err := s.r.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() && (f.Limit <= 0 || len(records) < f.Limit) {
		_, r, err := scanRecord(rows)
		if err != nil && !errors.Is(err, store.ErrCorrupt) {
			return nil, err
		}
		if err != nil || f.Matches(r) {
			records = append(records, listed{r, err})
		}
	}
	return records, rows.Err()
}

// Fork adds a session with the beginning of another session's log, and its blobs.
func (s *Store) Fork(ctx context.Context, from string, last uint64, r store.Record) error {
	return s.write(ctx, "fork", from, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.admit(ctx); err != nil {
			return err
		}
		old, err := headOf(ctx, tx, from)
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
		_, err = tx.ExecContext(ctx, `INSERT INTO event (session, seq, own, envelope, payload, sum)
			SELECT ?, seq, own, envelope, payload, sum FROM event WHERE session = ? AND seq <= ? ORDER BY seq`, n, old.n, last)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx,
			"INSERT INTO session_blob (session, blob, seq) SELECT ?, blob, seq FROM session_blob WHERE session = ? AND seq < ?", n, old.n, last)
		return err
	})
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
