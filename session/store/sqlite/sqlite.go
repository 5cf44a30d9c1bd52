package sqlite

import (
	"cmp"
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

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/agentenv-dev/agentenv/internal/flock"
	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	// Database is the name of the database in the folder of a store.
	Database = "agentenv.db"
	// busyTimeout is how long a method waits for another program's write.
	busyTimeout = 10 * time.Second
	// readers is how many methods may read at once.
	readers = 4
	// logPages is how many pages the write-ahead log has before it is copied into the database,
	// for which writers wait: 16 MiB.
	logPages = 4000
	// cache is how many KiB of the database the writer keeps in memory. The index of the digests is
	// read and written everywhere, and does not fit into SQLite's own 2 MiB from 30,000 files on.
	cache = 16 << 10
)

// Durability says when changes are on the disk, where a power failure does not lose them. Whatever
// it is, acknowledged changes survive the death of the program, a power failure loses only the
// latest changes, and what is left is whole.
type Durability string

// The levels of durability.
const (
	// DurabilityFast leaves it to the operating system, which writes within about half a minute.
	DurabilityFast Durability = "fast"
	// DurabilityQuery is the default: when the end of a query, a checkpoint or a rewind is
	// acknowledged, it is on the disk with all that came before in every session.
	DurabilityQuery Durability = "query"
	// DurabilityEvent has every change on the disk when it is acknowledged.
	DurabilityEvent Durability = "event"
)

// DefaultMinFree is the default of Config.MinFree: 256 MiB.
const DefaultMinFree = 256 << 20

// DefaultMaxSize is the default of Config.MaxSize: 20 GiB, which is five sessions of the largest
// size that package session allows by default.
const DefaultMaxSize = 20 << 30

// Config configures a store. The zero value is that of [Open].
type Config struct {
	// Durability is DurabilityQuery if it is empty.
	Durability Durability
	// MinFree is how many bytes must be free on the disk for a new session or prompt; with less,
	// these are syscall.ENOSPC, and queries that run go on. Zero means DefaultMinFree, a
	// negative number no minimum.
	MinFree int64
	// MaxSize is how many bytes of the disk all sessions may take, compressed, and what they share
	// counted once; from there on a new session or prompt is
	// syscall.ENOSPC, and queries that run go on. Zero means DefaultMaxSize, a negative number no
	// limit.
	MaxSize int64
	// ReadOnly opens a store that exists, to be read only, also where nothing can be written: on a
	// read-only or a full disk. Methods that write return fs.ErrPermission.
	ReadOnly bool

	vfs string // of SQLite; set by tests
}

// Store is a [store.Store] in a folder. See [Open].
type Store struct {
	dir string
	cfg Config
	// w has a single connection, so that writing goroutines queue for it here, where a context
	// can end the wait. It is nil in a store that is only read.
	w, r    *sql.DB
	info    os.FileInfo // of the database
	log     logWriter
	coder   coder
	find    *sql.Stmt // findBlob
	appends appends
}

var _ store.Store = (*Store)(nil)

// Open opens the store in a folder and creates both if they are missing, accessible to this
// user only. A database of a newer version is store.ErrNewer, a file that is not a database, or
// an empty one beside blobs, store.ErrCorrupt, a read-only folder fs.ErrPermission. The caller
// must close the sessions before the store.
func Open(ctx context.Context, dir string) (*Store, error) { return Config{}.Open(ctx, dir) }

// Open is like the function [Open].
func (c Config) Open(ctx context.Context, dir string) (*Store, error) {
	s, err := c.open(ctx, dir, busyTimeout, migrations)
	if err == nil {
		if s.find, err = s.r.PrepareContext(ctx, findBlob); err != nil {
			err = errors.Join(err, s.Close())
		}
	}
	if err != nil {
		return nil, &store.Error{Op: "open", Err: fmt.Errorf("%s: %w", dir, translate(dir, err))}
	}
	return s, nil
}

func (c Config) open(ctx context.Context, dir string, busy time.Duration, migrations []string) (*Store, error) {
	switch c.Durability {
	case "":
		c.Durability = DurabilityQuery
	case DurabilityFast, DurabilityQuery, DurabilityEvent:
	default:
		return nil, fmt.Errorf("%w: there is no durability %q; use fast, query or event", fs.ErrInvalid, c.Durability)
	}
	c.MinFree = cmp.Or(c.MinFree, DefaultMinFree)
	c.MaxSize = cmp.Or(c.MaxSize, DefaultMaxSize)
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, cfg: c, appends: appends{turn: make(chan struct{}, 1)}}
	if s.coder, err = newCoder(); err != nil {
		return nil, err
	}
	if c.ReadOnly {
		err = s.openToRead(ctx, busy, len(migrations))
	} else {
		err = s.withReserve(func() error {
			err := s.openToWrite(ctx, busy, migrations)
			if err != nil {
				err = errors.Join(err, s.Close())
			}
			return err
		})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Store) openToWrite(ctx context.Context, busy time.Duration, migrations []string) error {
	for _, sub := range []string{blobFolder, tmpFolder, lockFolder} {
		if err := os.MkdirAll(filepath.Join(s.dir, sub), 0o700); err != nil {
			return err
		}
	}
	name := filepath.Join(s.dir, Database)
	fresh, err := s.create(ctx, name)
	if err != nil {
		return err
	}
	// SQLite does not say why it cannot write. To open the file would lose its locks when it is closed.
	if err := unix.Access(name, unix.W_OK); err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if s.info, err = os.Stat(name); err != nil {
		return err
	}
	sync := "synchronous(NORMAL)"
	if s.cfg.Durability == DurabilityEvent {
		sync = "synchronous(FULL)"
	}
	pragmas := []string{sync, fmt.Sprintf("wal_autocheckpoint(%d)", logPages), fmt.Sprintf("cache_size(-%d)", cache)}
	if s.w, err = connect(name, s.cfg.vfs, busy, 1, url.Values{"_pragma": pragmas}); err != nil {
		return err
	}
	if s.r, err = connect(name, s.cfg.vfs, busy, readers, nil); err != nil {
		return err
	}
	err = s.migrate(ctx, migrations)
	if err == nil && fresh { // what SQLite has made and removed meanwhile is so after a power failure, too
		err = syncFile(s.dir)
		if outer := syncFile(filepath.Dir(s.dir)); !errors.Is(outer, fs.ErrPermission) { // which may be another user's
			err = errors.Join(err, outer)
		}
	}
	if err != nil {
		return err
	}
	s.reserve()
	return s.prepare(ctx)
}

// create creates the database if it is missing or empty, and reports whether it was.
func (s *Store) create(ctx context.Context, name string) (fresh bool, err error) {
	empty := func() bool {
		info, err := os.Stat(name)
		return err != nil || info.Size() == 0
	}
	if !empty() {
		return false, nil
	}
	unlock, err := flock.Lock(ctx, filepath.Join(s.dir, lockFolder, openLock), nil)
	if err != nil {
		return false, err
	}
	defer unlock()
	if !empty() { // another program has created it
		return false, nil
	}
	if err := s.checkNew(); err != nil {
		return false, err
	}
	// SQLite copies the mode of this file to its other files.
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// checkPresent refuses a change of a database that was removed, or replaced, while it is open. The
// change would be stored in a file without a name, and lost with the program.
func (s *Store) checkPresent() error {
	info, err := os.Stat(filepath.Join(s.dir, Database))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(info, s.info) {
		return fmt.Errorf("%w: %s in %s was removed or replaced while this program uses it; end the program, and start it again", store.ErrCorrupt, Database, s.dir)
	}
	return err
}

// checkNew refuses an empty or missing database where there was a store: a new one in its place
// would look as if there had been no sessions, and make all blobs garbage.
func (s *Store) checkNew() error {
	folders, err := os.ReadDir(filepath.Join(s.dir, blobFolder))
	_, reserved := os.Stat(filepath.Join(s.dir, reserveFile))
	if err == nil && (len(folders) > 0 || reserved == nil) {
		err = fmt.Errorf("%w: %s is empty or missing beside the other files of the sessions in %s; restore it from a backup, or remove the folder to begin anew",
			store.ErrCorrupt, Database, s.dir)
	}
	return err
}

// openToRead opens a store without writing to its folder.
func (s *Store) openToRead(ctx context.Context, busy time.Duration, version int) error {
	name := filepath.Join(s.dir, Database)
	switch info, err := os.Stat(name); {
	case errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0:
		return cmp.Or(s.checkNew(), fs.ErrNotExist)
	case err != nil:
		return err
	}
	// SQLite needs files beside a database that programs may write. If they can neither be opened
	// nor made, no program writes, and all that is needed is in the database and its log.
	ways := []url.Values{{"mode": {"ro"}}, {"mode": {"ro"}, "vfs": {"unix-none"}, "_pragma": {"locking_mode(EXCLUSIVE)"}}}
	if log, err := os.Stat(name + "-wal"); errors.Is(err, fs.ErrNotExist) || err == nil && log.Size() == 0 {
		ways[1] = url.Values{"mode": {"ro"}, "immutable": {"1"}}
	}
	var first error
	for _, way := range ways {
		r, err := connect(name, s.cfg.vfs, busy, readers, way)
		if err != nil {
			return err
		}
		found, err := versionOf(ctx, r)
		switch {
		case err == nil && found < version:
			err = fmt.Errorf("%w: it is of the older version %d; open it once where it can be written", errors.ErrUnsupported, found)
		case err == nil && found > version:
			err = newer(found, version)
		case err == nil:
			s.r = r
			return nil
		}
		first = cmp.Or(first, err)
		if err := r.Close(); err != nil {
			return err
		}
		if errors.Is(translate(s.dir, err), store.ErrBusy) {
			break // a program writes, so the other way could read half of it
		}
	}
	return first
}

// connect opens a database without accessing it.
func connect(name, vfs string, busy time.Duration, conns int, more url.Values) (*sql.DB, error) {
	query := url.Values{"_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds()), "foreign_keys(1)",
	}}
	if vfs != "" {
		query.Set("vfs", vfs)
	}
	for k, v := range more {
		query[k] = append(query[k], v...)
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: name, RawQuery: query.Encode()}).String())
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
	return s.failure(op, id, s.transact(ctx, false, f))
}

// failure returns the error of a method; nil for nil.
func (s *Store) failure(op, id string, err error) error {
	if err == nil {
		return nil
	}
	return &store.Error{Op: op, ID: id, Err: translate(s.dir, err)}
}

func (s *Store) transact(ctx context.Context, durably bool, f func(ctx context.Context, tx *sql.Tx) error) (err error) {
	if s.w == nil {
		return errReadOnly
	}
	conn, err := s.w.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	work := context.WithoutCancel(ctx)
	if durably && s.cfg.Durability != DurabilityEvent {
		// The commit then syncs the write-ahead log, and with it all earlier commits.
		if _, err := conn.ExecContext(work, "PRAGMA synchronous = FULL"); err != nil {
			return err
		}
		defer func() {
			_, back := conn.ExecContext(work, "PRAGMA synchronous = NORMAL")
			err = errors.Join(err, back)
		}()
	}
	tx, err := conn.BeginTx(work, nil)
	if err != nil {
		return err
	}
	if err = ctx.Err(); err == nil {
		err = s.checkPresent()
	}
	if err == nil {
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

// errReadOnly: a store that is only read refuses a change.
var errReadOnly = fmt.Errorf("%w: the store was opened to be read only", fs.ErrPermission)

// over reports whether a rollback failed because the transaction had already ended.
func over(err error) bool {
	failed, ok := errors.AsType[*sqlite.Error](err)
	return ok && failed.Code()&0xff == sqlite3.SQLITE_ERROR
}

// translate adds the sentinel of the contract to an error of the database or the file system.
func translate(dir string, err error) error {
	if errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	failed, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	full := fmt.Errorf("%w: the disk of %s is full; make room: %w", syscall.ENOSPC, dir, err)
	switch failed.Code() & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("%w; try again: %w", store.ErrBusy, err)
	case sqlite3.SQLITE_FULL:
		return full
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN:
		// SQLite does not say why it could not make one of its files.
		if free, files, statErr := room(dir); statErr == nil && (free < leastRoom || files == 0) {
			return full
		}
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return damagedDatabase(dir, err)
	}
	return err
}

func damagedDatabase(dir string, why error) error {
	return fmt.Errorf("%w; restore %s from a backup, or save what can be read with 'envctl sessions export' and move it away: %w", store.ErrCorrupt, dir, why)
}
