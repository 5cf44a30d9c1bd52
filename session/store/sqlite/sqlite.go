package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	// Database is the name of the database in the folder of a store.
	Database = "agentenv.db"
	// busyTimeout is how long a method waits for another program's write.
	busyTimeout = 10 * time.Second
	// readers is how many methods may read at once.
	readers = 4
)

// Store is a [store.Store] in a folder. See [Open].
type Store struct {
	dir string
	// w has a single connection, so that writing goroutines queue for it here, where a context
	// can end the wait.
	w, r *sql.DB
}

var _ store.Store = (*Store)(nil)

// Open opens the store in a folder and creates both if they are missing, accessible to this
// user only. A database of a newer version is store.ErrNewer, a file that is not a database
// store.ErrCorrupt, a read-only folder fs.ErrPermission. The caller must close the sessions
// before the store.
func Open(ctx context.Context, dir string) (*Store, error) {
	s, err := open(ctx, dir, busyTimeout, migrations)
	if err != nil {
		return nil, &store.Error{Op: "open", Err: fmt.Errorf("%s: %w", dir, translate(err))}
	}
	return s, nil
}

func open(ctx context.Context, dir string, busy time.Duration, migrations []string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{blobFolder, tmpFolder, lockFolder} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	name := filepath.Join(dir, Database)
	// SQLite copies the mode of this file to its other files.
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	s := &Store{dir: dir}
	if s.w, err = connect(name, busy, 1); err != nil {
		return nil, err
	}
	if s.r, err = connect(name, busy, readers); err == nil {
		err = s.migrate(ctx, migrations)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// connect opens a database without accessing it.
func connect(name string, busy time.Duration, conns int) (*sql.DB, error) {
	pragmas := url.Values{"_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds()),
		"foreign_keys(1)", "synchronous(NORMAL)",
	}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: name, RawQuery: pragmas.Encode()}).String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// Close closes the database. Later calls fail.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.r, s.w} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// write runs f in a transaction. ctx ends the wait for the connection, but does not interrupt
// f.
func (s *Store) write(ctx context.Context, op, id string, f func(ctx context.Context, tx *sql.Tx) error) error {
	err := s.transact(ctx, f)
	if err != nil {
		return &store.Error{Op: op, ID: id, Err: translate(err)}
	}
	return nil
}

func (s *Store) transact(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) (err error) {
	conn, err := s.w.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	work := context.WithoutCancel(ctx)
	tx, err := conn.BeginTx(work, nil)
	if err != nil {
		return err
	}
	if err = ctx.Err(); err == nil {
		err = f(work, tx)
	}
	if err != nil {
		// The database may have rolled back by itself, as on a full disk.
		if back := tx.Rollback(); !errors.Is(back, sql.ErrTxDone) && !over(back) {
			err = errors.Join(err, back)
		}
		return err
	}
	return tx.Commit()
}

// over reports whether a rollback failed because the transaction had already ended.
func over(err error) bool {
	failed, ok := errors.AsType[*sqlite.Error](err)
	return ok && failed.Code()&0xff == sqlite3.SQLITE_ERROR
}

// translate adds the sentinel of the contract to an error of the database or the file system.
func translate(err error) error {
	if errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	failed, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	switch failed.Code() & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("%w; try again: %w", store.ErrBusy, err)
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("%w; make room: %w", syscall.ENOSPC, err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w; restore it from a copy: %w", store.ErrCorrupt, err)
	}
	return err
}
