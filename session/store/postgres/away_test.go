package postgres

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentenv-dev/agentenv/internal/test/testpostgres"
	"github.com/agentenv-dev/agentenv/session/store"
)

func TestADatabaseThatComesBackLosesNothing(t *testing.T) {
	t.Parallel()
	db := testpostgres.Start(t)
	s := opened(t, Config{}, db.URL())
	locked(t, s)
	db.Stop(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	if err := s.Append(ctx, "s", numbered(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("without patience: %v", err)
	}
	appended := make(chan error)
	go func() { appended <- s.Append(t.Context(), "s", numbered(1)) }()
	db.Start(t)
	if err := <-appended; err != nil {
		t.Fatal(err)
	}
	if r, err := s.Load(t.Context(), "s"); err != nil || r.LastSeq != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestADatabaseThatStaysAwayIsUnavailable(t *testing.T) {
	t.Parallel()
	db := testpostgres.Start(t)
	s := opened(t, Config{lease: short}, db.URL())
	locked(t, s)
	db.Stop(t)
	_, load := s.Load(t.Context(), "s")
	_, open := Open(t.Context(), db.URL())
	for op, err := range map[string]error{"append": s.Append(t.Context(), "s", numbered(1)), "load": load, "open": open} {
		var where *store.Error
		if !errors.Is(err, store.ErrUnavailable) || !errors.As(err, &where) || where.Op != op || strings.Contains(err.Error(), testpostgres.Password) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// The database ends a connection whose program has stood still within a transaction: nothing was changed, and the change is made
// again.
func TestAProgramThatStandsStillTriesAgain(t *testing.T) {
	t.Parallel()
	s := opened(t, Config{}, testpostgres.URL(t))
	attempts := 0
	err := s.transact(t.Context(), "append", "s", func(ctx context.Context, tx pgx.Tx) error {
		if attempts++; attempts > 1 {
			return nil
		}
		if _, err := tx.Exec(ctx, "SET idle_in_transaction_session_timeout = 1"); err != nil {
			return err
		}
		for gone := false; !gone; {
			if err := s.leases.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", tx.Conn().PgConn().PID()).Scan(&gone); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	})
	if err != nil || attempts != 2 {
		t.Errorf("after %d attempts: %v", attempts, err)
	}
}

// A program that was suspended for longer than the database is waited for has not waited for it.
func TestASuspendedProgramTriesOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Store{leaseTime: leaseTime, stopped: t.Context()}
		attempts := 0
		f := func(context.Context) error {
			if attempts++; attempts == 1 {
				time.Sleep(2 * leaseTime)
				return store.ErrUnavailable
			}
			return nil
		}
		if err := s.retry(t.Context(), 3*leaseTime, "append", "s", f); err != nil || attempts != 2 {
			t.Errorf("after %d attempts: %v", attempts, err)
		}
	})
}

// The connection breaks when the database has committed: the caller must not learn of a failure, and the event must not be
// stored twice.
func TestAnAppendWhoseAnswerIsLostIsMadeOnce(t *testing.T) {
	t.Parallel()
	db := testpostgres.URL(t)
	at, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, at.Host)
	at.Host = p.l.Addr().String()
	s := opened(t, Config{}, at.String())
	locked(t, s)
	p.cut.Store(true)
	if err := s.Append(t.Context(), "s", numbered(1), numbered(2)); err != nil || p.cut.Load() {
		t.Fatalf("%v; cut %v", err, !p.cut.Load())
	}
	p.cut.Store(true)
	if err := s.Update(t.Context(), "s", func(r *store.Record) { r.Title += "x" }); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("an update that may have been made: %v", err)
	}
	if r, err := s.Load(t.Context(), "s"); err != nil || r.LastSeq != 2 || len(r.Title) > 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := s.Append(t.Context(), "s", numbered(2)); !errors.Is(err, store.ErrConflict) {
		t.Errorf("another event of that number: %v", err)
	}
}

// proxy stands between a store and its database.
type proxy struct {
	l   net.Listener
	cut atomic.Bool // break the connection of the next commit, when that has reached the database and its answer is here
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() { cancel(); _ = l.Close(); all.Wait() })
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := new(net.Dialer).DialContext(ctx, "tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			stop := context.AfterFunc(ctx, func() { _, _ = in.Close(), out.Close() })
			var cut atomic.Bool
			all.Go(func() {
				defer stop()
				buf := make([]byte, 64<<10)
				for {
					n, err := in.Read(buf)
					if bytes.Contains(buf[:n], []byte("commit\x00")) && p.cut.CompareAndSwap(true, false) {
						cut.Store(true)
					}
					if _, werr := out.Write(buf[:n]); err != nil || werr != nil {
						_ = out.Close()
						return
					}
				}
			})
			all.Go(func() {
				buf := make([]byte, 64<<10)
				for {
					n, err := out.Read(buf)
					if err != nil || cut.Load() {
						_, _ = in.Close(), out.Close()
						return
					}
					if _, err := in.Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	return p
}

func TestADatabaseThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	db := testpostgres.URL(t)
	opened(t, Config{}, db)
	changed := func(change func(*url.URL)) string {
		u, err := url.Parse(db)
		if err != nil {
			t.Fatal(err)
		}
		change(u)
		return u.String()
	}
	for what, c := range map[string]struct {
		url  string
		want error
	}{
		"a wrong password": {changed(func(u *url.URL) { u.User = url.UserPassword("agentenv", "secret-that-is-wrong") }), fs.ErrPermission},
		"no such database": {changed(func(u *url.URL) { u.Path = "/other" }), fs.ErrNotExist},
		"nobody listens":   {changed(func(u *url.URL) { u.Host = "127.0.0.1:1" }), store.ErrUnavailable},
		"not a URL":        {"postgres://agentenv:" + testpostgres.Password + "@h:port:port/%zz", fs.ErrInvalid},
		"nothing":          {"bolt", fs.ErrInvalid},
	} {
		s, err := Open(t.Context(), c.url)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, c.want) || strings.Contains(err.Error(), testpostgres.Password) || strings.Contains(err.Error(), "secret-that-is-wrong") {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	s := opened(t, Config{}, db)
	if _, err := s.pool.Exec(t.Context(), "INSERT INTO version (n) VALUES ($1)", len(migrations)+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), db); !errors.Is(err, store.ErrNewer) {
		t.Errorf("of a newer version: %v", err)
	}
}

func TestTheUploadsOfDeadProgramsAreSwept(t *testing.T) {
	t.Parallel()
	db := testpostgres.URL(t)
	s := opened(t, Config{}, db)
	locked(t, s)
	blobs := func() (n int) {
		t.Helper()
		if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM blob").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, id := range []string{"old", "new"} {
		u := &upload{s: s, id: id}
		if _, err := u.add(t.Context(), strings.NewReader(id)); err != nil {
			t.Fatal(err)
		}
		if err := u.send(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.PutBlob(t.Context(), s, "s", io.MultiReader(strings.NewReader("half"), errReader{})); err == nil || blobs() != 2 {
		t.Errorf("a put that failed: %v; %d blobs, want those of the uploads", err, blobs())
	}
	if _, err := s.pool.Exec(t.Context(), "UPDATE upload SET made = $1 WHERE id = 'old'", time.Now().Add(-25*time.Hour)); err != nil {
		t.Fatal(err)
	}
	opened(t, Config{}, db)
	eventually(t, "the old upload is removed, and the other one stays", func() bool { return blobs() == 1 })
}

// errReader fails.
type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("the sandbox is gone") }

func TestADamagedBlobIsFoundOut(t *testing.T) {
	t.Parallel()
	s := opened(t, Config{}, testpostgres.URL(t))
	locked(t, s)
	for _, content := range []string{"small", strings.Repeat("large", pieceSize)} {
		digest, err := store.PutBlob(t.Context(), s, "s", strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.pool.Exec(t.Context(), "UPDATE piece SET content = content || 'x'"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Blob(t.Context(), "s", digest); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%d bytes: %v", len(content), err)
		}
	}
}
