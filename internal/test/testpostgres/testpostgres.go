// Package testpostgres is a PostgreSQL server for tests: the programs of Debian's package, with a database of its own.
package testpostgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentenv-dev/agentenv/internal/test/testneed"
)

// Password is that of the user of the databases.
const Password = "password-of-the-tests"

// Server is a PostgreSQL server on the loopback interface. It ends with the test that started it.
type Server struct {
	dir     string // of its files
	address string
	cmd     *exec.Cmd
	ended   chan error // has how the process ended
	schemas int
}

// shared is the server of URL, and how many tests use it.
var shared struct {
	sync.Mutex
	*Server
	users int
}

// URL returns the URL of an empty schema, which is as good as a database of its own. Tests that run at once share its server.
func URL(t testing.TB) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.users == 0 {
		shared.Server = start(t)
	}
	shared.users++
	t.Cleanup(func() {
		shared.Lock()
		defer shared.Unlock()
		if shared.users--; shared.users == 0 {
			shared.end(t)
		}
	})
	return shared.schema(t)
}

// Start starts a server with an empty database, for a test that stops it. It ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s := start(t)
	t.Cleanup(func() { s.end(t) })
	return s
}

func start(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentenv-postgres-") //nolint:usetesting // the folder of a test is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{dir: dir, address: freeAddress(t)}
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte(Password), 0o600); err != nil {
		t.Fatal(err)
	}
	if id := credential(t); id != nil {
		if err := errors.Join(os.Chown(dir, int(id.Uid), int(id.Gid)), os.Chown(password, int(id.Uid), int(id.Gid))); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := s.command(t, "initdb", "-D", s.data(), "-U", "agentenv", "--pwfile", password,
		"-A", "password", "-E", "UTF8", "--locale", "C", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	s.Start(t)
	return s
}

func (s *Server) end(t testing.TB) {
	t.Helper()
	if s.cmd != nil {
		s.Stop(t)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		t.Error(err)
	}
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// URL returns the URL of the database.
func (s *Server) URL() string { return s.url(nil) }

func (s *Server) url(query url.Values) string {
	if query == nil {
		query = url.Values{}
	}
	query.Set("sslmode", "disable")
	return (&url.URL{
		Scheme: "postgres", User: url.UserPassword("agentenv", Password), Host: s.address, Path: "/postgres", RawQuery: query.Encode(),
	}).String()
}

func (s *Server) schema(t testing.TB) string {
	t.Helper()
	s.schemas++
	name := fmt.Sprintf("s%d", s.schemas)
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err == nil {
		_, err = conn.Exec(t.Context(), "CREATE SCHEMA "+name)
		err = errors.Join(err, conn.Close(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.url(url.Values{"search_path": {name}})
}

// Start starts a server that was stopped.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	host, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	s.cmd = s.command(t, "postgres", "-D", s.data(), "-c", "listen_addresses="+host, "-c", "port="+port,
		"-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "shared_buffers=16MB")
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	s.cmd.Stderr = log
	endWithThread(s.cmd.SysProcAttr)
	started := make(chan error, 1)
	s.ended = make(chan error, 1)
	go func() { // it keeps its thread until the server has ended, so that only the end of this program ends both
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		if started <- err; err == nil {
			s.ended <- s.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	s.await(t)
}

// await waits until the server answers.
func (s *Server) await(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.URL())
		if err == nil {
			_ = conn.Close(ctx)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			said, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			t.Fatalf("PostgreSQL: %v: %s", err, said)
		}
	}
}

// Stop ends the server and its connections. Its data stays for Start.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	err := errors.Join(s.cmd.Process.Signal(syscall.SIGINT), <-s.ended)
	s.cmd = nil
	if err != nil {
		t.Errorf("PostgreSQL: %v", err)
	}
}

// command returns a command of the newest PostgreSQL of this machine. It runs as a user that may run it.
func (s *Server) command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("/usr/lib/postgresql/*/bin", name))
	testneed.Require(t, err == nil && len(found) > 0, "run the set-up first: PostgreSQL is missing in /usr/lib/postgresql")
	slices.Sort(found)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), found[len(found)-1], args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(t)}
	return cmd
}

// credential returns the user that the server runs as if this program runs as root, which PostgreSQL refuses; else nil.
func credential(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	testneed.Require(t, err == nil, "run the set-up first: PostgreSQL's user is missing")
	uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(uerr, gerr); err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// freeAddress returns an address of the loopback network of which this server alone makes use: a port of 127.0.0.1 could be
// that of another test as soon as the server does not listen.
func freeAddress(t testing.TB) string {
	t.Helper()
	host := fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
