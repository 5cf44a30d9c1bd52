package coordinator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/agentenv-dev/agentenv/internal/flock"
)

// ErrInUse says that another program has the coordinator of this folder.
var ErrInUse = errors.New("another program has this coordinator")

const (
	database = "coordinator.db"
	lockFile = "lock"
	// lockWait is how long a program that ends may still have the lock.
	lockWait = time.Second
	// busyWait is how long a connection waits for another one, or for a program that copies the database.
	busyWait = 10 * time.Second
	// keptDeletions is how many entries of the log later a deletion is forgotten.
	keptDeletions = 100_000
)

// migrations lead from each version of the database to the next one.
var migrations = []string{`
CREATE TABLE item (
	kind TEXT NOT NULL, -- session, run or runner
	id   TEXT NOT NULL,
	data TEXT NOT NULL, -- JSON
	PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE entry (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT, -- is never used again
	kind    TEXT NOT NULL,
	session TEXT NOT NULL,
	owner   TEXT NOT NULL, -- of the session
	time    INTEGER NOT NULL, -- milliseconds since 1970
	key     TEXT NOT NULL, -- of an event that may be sent again; empty for none
	data    TEXT NOT NULL -- JSON
);
CREATE INDEX entry_session ON entry (session, kind, seq);
CREATE INDEX entry_deleted ON entry (kind, seq) WHERE kind = 'session_deleted';
CREATE UNIQUE INDEX entry_key ON entry (session, key) WHERE key != '';
`, `
ALTER TABLE entry ADD COLUMN runner TEXT NOT NULL DEFAULT ''; -- the caller behind the session's runner
`}

const (
	// hasKey repeats the condition of its index, which SQLite does not use else.
	hasKey = "SELECT EXISTS (SELECT 1 FROM entry WHERE session = ? AND key = ? AND key != '')"
	// countEvents reads an index, and one row of each session.
	countEvents     = "SELECT entry.session, n, time FROM entry JOIN (SELECT count(*) AS n, max(seq) AS last FROM entry WHERE kind = ? GROUP BY session) ON seq = last"
	forgetSession   = "DELETE FROM entry WHERE session = ?"
	forgetDeletions = "DELETE FROM entry WHERE kind = 'session_deleted' AND seq < (SELECT max(seq) FROM entry) - ?"
	forgetFailures  = "DELETE FROM entry WHERE session = ? AND kind = 'run_failed' AND seq <= (SELECT seq FROM entry WHERE session = ? AND kind = 'run_failed' ORDER BY seq DESC LIMIT 1 OFFSET ?)"
)

// entry is one line of the log that clients follow.
type entry struct {
	seq     uint64
	kind    string
	session string
	owner   string // of the session
	runner  string // the caller behind its runner
	time    time.Time
	key     string
	data    json.RawMessage
}

// item is something stored; nil data removes it.
type item struct {
	kind, id string
	data     any
}

// db is the storage: items by kind and ID, and a log. One program has it at a time.
type db struct {
	read   *sql.DB // of a few connections
	write  *sql.DB // the one connection of changes, which wait for no reader
	unlock func()
}

func openDB(ctx context.Context, dir string) (_ *db, err error) {
	unlock, err := flock.LockWithin(filepath.Join(dir, lockFile), lockWait)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	name := filepath.Join(dir, database)
	// SQLite copies the mode of this file to its other files.
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, err
	}
	options := url.Values{"_pragma": {fmt.Sprintf("busy_timeout(%d)", busyWait.Milliseconds()), "journal_mode(WAL)", "synchronous(FULL)"}, "_txlock": {"immediate"}}
	source := (&url.URL{Scheme: "file", OmitHost: true, Path: name, RawQuery: options.Encode()}).String()
	d := &db{unlock: unlock}
	if d.write, err = sql.Open("sqlite", source); err != nil {
		return nil, err
	}
	d.write.SetMaxOpenConns(1)
	if err := prepare(ctx, d.write); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), d.write.Close())
	}
	if d.read, err = sql.Open("sqlite", source); err != nil {
		return nil, errors.Join(err, d.write.Close())
	}
	d.read.SetMaxOpenConns(2) // a long answer of the log does not hold up the others
	return d, nil
}

// prepare brings a database to the current version.
func prepare(ctx context.Context, conn *sql.DB) error {
	var found int
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&found); err != nil {
		return err
	}
	switch {
	case found > len(migrations):
		return fmt.Errorf("version %d; this program knows versions up to %d: update it", found, len(migrations))
	case found == len(migrations):
		return nil
	}
	_, err := conn.ExecContext(ctx, fmt.Sprintf("BEGIN; %s PRAGMA user_version = %d; COMMIT", strings.Join(migrations[found:], ""), len(migrations)))
	return err
}

func (d *db) close() error {
	err := errors.Join(d.read.Close(), d.write.Close())
	d.unlock()
	return err
}

// items returns all items of a kind.
func (d *db) items(ctx context.Context, kind string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		rows, err := d.read.QueryContext(ctx, "SELECT data FROM item WHERE kind = ?", kind)
		if err != nil {
			yield(nil, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			var data []byte
			if err := rows.Scan(&data); !yield(data, err) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(nil, err)
		}
	}
}

// commit stores items and adds entries, all or nothing.
func (d *db) commit(ctx context.Context, items []item, entries []entry) (err error) {
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	for _, it := range items {
		if it.data == nil {
			if _, err := tx.ExecContext(ctx, "DELETE FROM item WHERE kind = ? AND id = ?", it.kind, it.id); err != nil {
				return err
			}
			continue
		}
		data, err := json.Marshal(it.data)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO item VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET data = excluded.data", it.kind, it.id, string(data)); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if err := forget(ctx, tx, e); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO entry (kind, session, owner, runner, time, key, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
			e.kind, e.session, e.owner, e.runner, e.time.UnixMilli(), e.key, string(e.data)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// forget removes entries that the next one makes needless, so that the log does not grow with every change: earlier states of a
// session, its failed runs but the last ones, which the coordinator has forgotten itself, everything of one that is deleted, and old
// deletions.
func forget(ctx context.Context, tx *sql.Tx, next entry) error {
	var err error
	switch next.kind {
	case kindUpdated:
		_, err = tx.ExecContext(ctx, "DELETE FROM entry WHERE session = ? AND kind = ?", next.session, kindUpdated)
	case kindRunFailed:
		_, err = tx.ExecContext(ctx, forgetFailures, next.session, next.session, keptRuns-1) // with next they are as many as the runs
	case kindDeleted:
		if _, err = tx.ExecContext(ctx, forgetSession, next.session); err == nil {
			_, err = tx.ExecContext(ctx, forgetDeletions, keptDeletions)
		}
	}
	return err
}

// query selects entries.
type query struct {
	after   uint64  // the first one comes after this one
	session string  // empty for all
	kind    string  // empty for all; only with a session
	caller  *string // nil for all, else the owner of the session or the caller behind its runner
}

// sql returns the statement of a query with its arguments.
func (q *query) sql() (text string, args []any) {
	text, args = "SELECT seq, kind, session, owner, time, key, data FROM entry WHERE seq > ?", []any{q.after}
	add := func(condition string, more ...any) { text, args = text+" AND "+condition, append(args, more...) }
	switch {
	case q.kind != "":
		add("session = ? AND kind = ?", q.session, q.kind)
	case q.session != "":
		// The sign keeps SQLite from an index that has no order for this: it would read and sort the whole log of the session.
		add("+session = ?", q.session)
	}
	if q.caller != nil {
		add("(owner = ? OR runner = ?)", *q.caller, *q.caller)
	}
	return text + " ORDER BY seq LIMIT ?", append(args, batch)
}

// next returns the next entries in order, and moves q past them and those that it does not select. If more is true, there may be
// others.
func (d *db) next(ctx context.Context, q *query) (list []entry, more bool, err error) {
	last, err := d.last(ctx) // before the query: an entry that comes between them is not passed over
	if err != nil {
		return nil, false, err
	}
	text, args := q.sql()
	rows, err := d.read.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	for size := 0; !more && rows.Next(); {
		var e entry
		var ms int64
		var data []byte
		if err := rows.Scan(&e.seq, &e.kind, &e.session, &e.owner, &ms, &e.key, &data); err != nil {
			return nil, false, err
		}
		e.time, e.data = time.UnixMilli(ms).UTC(), data
		list, size = append(list, e), size+len(data)
		more = len(list) == batch || size >= batchSize
	}
	if err := rows.Err(); err != nil {
		return nil, false, err
	}
	if !more {
		q.after = max(q.after, last)
	}
	if len(list) > 0 {
		q.after = max(q.after, list[len(list)-1].seq)
	}
	return list, more, nil
}

// logged is what the log has of a session's events.
type logged struct {
	events int
	last   time.Time
}

// logged returns what the log has of the events of each session.
func (d *db) logged(ctx context.Context) (_ map[string]logged, err error) {
	rows, err := d.read.QueryContext(ctx, countEvents, kindEvent)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	all := make(map[string]logged)
	for rows.Next() {
		var id string
		var l logged
		var ms int64
		if err := rows.Scan(&id, &l.events, &ms); err != nil {
			return nil, err
		}
		l.last = time.UnixMilli(ms).UTC()
		all[id] = l
	}
	return all, rows.Err()
}

// has reports whether a session has an entry with a key. It is part of a change.
func (d *db) has(ctx context.Context, session, key string) (has bool, err error) {
	err = d.write.QueryRowContext(ctx, hasKey, session, key).Scan(&has)
	return has, err
}

// last returns the number of the latest entry.
func (d *db) last(ctx context.Context) (seq uint64, err error) {
	err = d.read.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM entry").Scan(&seq)
	return seq, err
}
