package engine_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/internal/test/testdocker"
	"github.com/agentenv-dev/agentenv/internal/test/testnet"
	"github.com/agentenv-dev/agentenv/internal/test/testssh"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
)

func TestAnEngineBehindSSH(t *testing.T) {
	testdocker.CleanEnv(t)
	cfg := config(t)
	socket := strings.TrimPrefix(testdocker.NewProxy(t).Host(), "unix://")
	address := testssh.Start(t).Address

	t.Run("a sandbox", func(t *testing.T) {
		cfg := cfg
		cfg.Host = "ssh://root@" + address
		s := open(t, cfg)
		if got := output(t, s, "echo", "hello"); got != "hello\n" {
			t.Errorf("got %q", got)
		}
		second, err := cfg.Attach(t.Context(), s.ID())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = second.Close() }()
		if got := output(t, second, "echo", "again"); got != "again\n" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("another socket over there, by a context", func(t *testing.T) {
		testdocker.WriteContext(t, testdocker.CleanEnv(t), "far", map[string]any{"Host": "ssh://" + address + socket})
		t.Setenv("DOCKER_CONTEXT", "far")
		if err := ask(t.Context(), ""); err != nil {
			t.Error(err)
		}
	})
	t.Run("a socket that is not there", func(t *testing.T) {
		failsWith(t, "ssh://root@"+address+"/no/such'; echo $HOME", "/no/such'; echo $HOME")
	})
	t.Run("a user that is not let in", func(t *testing.T) {
		failsWith(t, "ssh://nobody@"+address, "Permission denied")
	})
	t.Run("nobody listens", func(t *testing.T) {
		failsWith(t, "ssh://root@"+testnet.FreeAddress(t), "refused")
	})
	t.Run("a host key that is not known", func(t *testing.T) {
		// The list of known hosts has the address but not the name.
		_, port, _ := net.SplitHostPort(address)
		failsWith(t, "ssh://root@localhost:"+port, "verification failed")
	})
	t.Run("a context that ends", func(t *testing.T) {
		// A server that accepts but never answers, as behind a firewall.
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = silent.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := ask(ctx, "ssh://"+silent.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("an engine that never answers", func(t *testing.T) {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if err := engine.AskPatiently(t.Context(), "ssh://root@"+address+l.Addr().String(), 10*time.Millisecond); !errors.Is(err, engine.ErrSilent) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no ssh command", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		if err := ask(t.Context(), "ssh://root@"+address); !errors.Is(err, primitives.ErrUnavailable) || !errors.Is(err, exec.ErrNotFound) {
			t.Errorf("got %v", err)
		}
	})
}

// failsWith expects that the engine is unavailable, and that the error contains ssh's words.
func failsWith(t *testing.T, host, words string) {
	t.Helper()
	err := ask(t.Context(), host)
	if !errors.Is(err, primitives.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(err.Error(), words) {
		t.Errorf("%q does not say %q", err, words)
	}
}

// The transport reads and writes at once, and closes the connection after the first error. The
// words of ssh must be in the error that it reports, whichever that is.
func TestAFailureOfSSHIsTheErrorOfEveryOperation(t *testing.T) {
	const words = "connect to host far port 22: Connection refused"
	doubleSSH(t, "exec <&-; echo closed; echo '"+words+"' >&2; exit 255")
	write := func(c net.Conn) error { _, err := c.Write([]byte("x")); return err }
	read := func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err }
	for name, order := range map[string][]func(net.Conn) error{
		"written first": {write, read, write},
		"read first":    {read, write, read},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := engine.DialSSH(t.Context(), "far")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := io.ReadFull(conn, make([]byte, len("closed\n"))); err != nil {
				t.Fatal(err)
			}
			for i, operate := range order {
				if err := operate(conn); engine.WordsOfSSH(err) != words {
					t.Errorf("operation %d: %v, %q; want %q", i, err, engine.WordsOfSSH(err), words)
				}
				_ = conn.Close() // as the transport does
			}
		})
	}
}

// A server may answer before it has read all of an upload, and then read no more.
func TestAnEarlyAnswerIsReadWhole(t *testing.T) {
	doubleSSH(t, "echo answer; exec <&-")
	conn, err := engine.DialSSH(t.Context(), "far")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for err == nil {
		_, err = conn.Write([]byte("x"))
	}
	if got, err := io.ReadAll(conn); string(got) != "answer\n" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// doubleSSH makes a shell script the ssh command of the test.
func doubleSSH(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}
