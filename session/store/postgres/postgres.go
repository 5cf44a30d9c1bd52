package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	// leaseTime is how long a lease lasts without being renewed, and renewals how many of them fit into it.
	leaseTime = 10 * time.Second
	renewals  = 5
	// answerTime is how long a method waits for one answer, and connectTime for a connection.
	answerTime  = 30 * time.Second
	connectTime = 10 * time.Second
	// idleTime is how long the database waits for the next statement of a transaction.
	idleTime = 5 * time.Second
	// maxUploads is how many blobs, or batches of small ones, are stored at once.
	maxUploads = 4
	// firstWait and lastWait are between attempts.
	firstWait = 20 * time.Millisecond
	lastWait  = time.Second
)

// Config configures a store. The zero value is that of [Open].
type Config struct {
	// Name says which program has the lease of a session, to those that want it: store.ErrLocked and
	// Store.Owner contain it. A server uses its URL. Empty means the process and the machine.
	Name string

	lease time.Duration // set by tests
}

// Store is a [store.Shared] in a database. See [Open].
type Store struct {
	pool *pgxpool.Pool
	// leases renews the leases, and uploads stores blobs. They have connections of their own: the first is never delayed by
	// other methods, and the second delays none.
	leases, uploads *pgxpool.Pool
	owner           string // is never used again
	name            string
	leaseTime       time.Duration

	stop    context.CancelFunc
	stopped context.Context //nolint:containedctx // the life of the store, not of a call
	renewed sync.WaitGroup

	mu     sync.Mutex
	held   map[string]lease // by session; also those that were lost
	lost   map[string]bool
	renews time.Time // when the leases were last renewed
	steady time.Time // since when that was without a failure
}

var _ store.Shared = (*Store)(nil)

// Open opens the store in a database, and makes its tables if they are missing. The URL is that of
// PostgreSQL's own clients, such as postgres://user@host/database?search_path=schema; PGPASSWORD and the
// other variables of these clients complete it. A database that does not answer is
// store.ErrUnavailable, one of a newer version store.ErrNewer, a refused login fs.ErrPermission. The
// caller must close the sessions before the store.
func Open(ctx context.Context, url string) (*Store, error) { return Config{}.Open(ctx, url) }

// Open is like the function [Open].
func (c Config) Open(ctx context.Context, url string) (*Store, error) {
	s, err := c.open(ctx, url)
	if err != nil {
		return nil, &store.Error{Op: "open", Err: translate(err)}
	}
	return s, nil
}

func (c Config) open(ctx context.Context, url string) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil { // which quotes the URL, and with it the password
		return nil, fmt.Errorf("%w: the URL of the database cannot be read; give one such as postgres://user@host/database", fs.ErrInvalid)
	}
	cfg.ConnConfig.ConnectTimeout = cmp.Or(cfg.ConnConfig.ConnectTimeout, connectTime)
	s := &Store{
		owner: rand.Text(), name: c.Name, leaseTime: cmp.Or(c.lease, leaseTime), held: make(map[string]lease), lost: make(map[string]bool),
		renews: time.Now(), steady: time.Now(),
	}
	if s.name == "" {
		host, _ := os.Hostname() // empty means unknown
		s.name = fmt.Sprintf("process %d (%s) on %s", os.Getpid(), filepath.Base(os.Args[0]), host)
	}
	// A program that stops within a transaction must not hold its locks for ever.
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(idleTime.Milliseconds())
	own := cfg.Copy()
	own.MinConns, own.MinIdleConns = 0, 0
	for pool, most := range map[**pgxpool.Pool]int32{&s.pool: cfg.MaxConns, &s.leases: 1, &s.uploads: maxUploads} {
		own := own.Copy()
		own.MaxConns = most
		if *pool, err = pgxpool.NewWithConfig(ctx, own); err != nil {
			break
		}
	}
	if err == nil {
		err = s.migrate(ctx)
	}
	if err != nil {
		s.closePools()
		return nil, err
	}
	s.stopped, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.renewed.Go(func() { s.renewAll(s.stopped) })
	s.renewed.Go(func() { _ = s.sweep(s.stopped) }) // the next Open tries again
	return s, nil
}

// Close closes the connections. Later calls fail.
func (s *Store) Close() error {
	s.stop()
	s.renewed.Wait()
	s.closePools()
	return nil
}

func (s *Store) closePools() {
	for _, pool := range []*pgxpool.Pool{s.pool, s.leases, s.uploads} {
		if pool != nil {
			pool.Close()
		}
	}
}

// uncertain is the error of a change that may have been made.
type uncertain struct{ error }

func (u uncertain) Unwrap() error { return u.error }

// patiently is retry for what is done in a moment.
func (s *Store) patiently(ctx context.Context, op, id string, f func(ctx context.Context) error) error {
	return s.retry(ctx, answerTime, op, id, f)
}

// retry calls f, again while the database is away for no longer than a lease lasts, and returns the error of the
// method op. f, whose context lasts for limit, is not called again after an [uncertain] error. A program that stands still for
// longer than that, as when it is suspended, tries once more.
func (s *Store) retry(ctx context.Context, limit time.Duration, op, id string, f func(ctx context.Context) error) error {
	wait, end := firstWait, time.Now().Add(s.leaseTime)
	for {
		began, err := time.Now(), ctx.Err()
		if err == nil {
			err = translate(attempt(ctx, limit, f))
		}
		if err == nil {
			return nil
		}
		_, unknown := errors.AsType[uncertain](err)
		if again := errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrBusy); !again || unknown || began.After(end) {
			return &store.Error{Op: op, ID: id, Err: err}
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			end = time.Time{}
		case <-s.stopped.Done():
			end = time.Time{}
		}
		timer.Stop()
		wait = min(2*wait, lastWait)
	}
}

// attempt calls f with a context that lasts for limit. That this has passed is store.ErrUnavailable.
func attempt(ctx context.Context, limit time.Duration, f func(ctx context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil && !errors.Is(err, store.ErrUnavailable) {
		return fmt.Errorf("%w: no answer for %v: %v", store.ErrUnavailable, limit, err) //nolint:errorlint // the caller's context goes on
	}
	return err
}

// transact makes a change of the method op in a transaction. ctx ends the wait for the database, but does
// not interrupt f.
func (s *Store) transact(ctx context.Context, op, id string, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.patiently(ctx, op, id, func(ctx context.Context) error { return s.once(ctx, s.pool, answerTime, f) })
}

// once makes a change in one attempt, which lasts at most for a time.
func (s *Store) once(ctx context.Context, pool *pgxpool.Pool, limit time.Duration, f func(ctx context.Context, tx pgx.Tx) error) (err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	work, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, fmt.Errorf("%w: it did not answer for %v", store.ErrUnavailable, limit))
	defer cancel()
	defer func() {
		if err != nil && work.Err() != nil {
			err = errors.Join(err, context.Cause(work))
		}
	}()
	tx, err := conn.Begin(work)
	if err != nil {
		return err
	}
	if err = ctx.Err(); err == nil {
		err = f(work, tx)
	}
	if err != nil {
		_ = tx.Rollback(work) // a connection that fails is closed, and that rolls back, too
		return err
	}
	if err = tx.Commit(work); err != nil {
		if _, refused := errors.AsType[*pgconn.PgError](err); !refused {
			err = uncertain{fmt.Errorf("%w: %w", store.ErrUnavailable, err)}
		}
	}
	return err
}

// translate adds the sentinel of the contract to an error of the database.
func translate(err error) error {
	var sentinel error
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		sentinel = sentinelOf(said.Code)
	} else if isOf[*pgconn.ConnectError](err) || isOf[net.Error](err) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		sentinel = store.ErrUnavailable
	}
	for _, known := range []error{context.Canceled, context.DeadlineExceeded, sentinel} {
		if known == nil || errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}

func isOf[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// sentinelOf returns the sentinel for a code of PostgreSQL (its documentation, appendix A); nil if there is
// none.
func sentinelOf(code string) error {
	switch code {
	case "23505": // unique_violation
		return fs.ErrExist
	case "25006", "28000", "28P01", "42501": // read-only, invalid login, insufficient privilege
		return fs.ErrPermission
	case "3D000", "3F000": // no such database, no such schema
		return fs.ErrNotExist
	case "40001", "40P01", "55P03": // serialization failure, deadlock, lock not available
		return store.ErrBusy
	case "53100": // disk_full
		return syscall.ENOSPC
	// too many connections, shut down, crashed, not started yet; this program has stood still in a transaction, or outside of one
	case "53300", "57P01", "57P02", "57P03", "25P03", "57P05":
		return store.ErrUnavailable
	case "XX001", "XX002": // data or index corrupted
		return store.ErrCorrupt
	}
	if len(code) == 5 && code[:2] == "08" { // connection exception
		return store.ErrUnavailable
	}
	return nil
}
