package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fed listens in dir until the test ends.
func fed(t *testing.T, dir string, wait time.Duration) func() *fedInput {
	t.Helper()
	listening := make(chan *fedInput)
	go func() {
		in, err := listen(t.Context(), dir, wait)
		if err != nil {
			t.Error(err)
		}
		listening <- in
	}()
	return func() *fedInput {
		t.Helper()
		in := <-listening
		if in == nil {
			t.FailNow()
		}
		t.Cleanup(func() {
			if err := in.Close(); err != nil {
				t.Error(err)
			}
		})
		return in
	}
}

// feedLines runs a feed that passes lines on until end is called.
func feedLines(t *testing.T, dir, lines string) (end func()) {
	t.Helper()
	r, w := io.Pipe()
	var running sync.WaitGroup
	running.Go(func() {
		if err := feed(t.Context(), r, dir); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() { _, _ = io.WriteString(w, lines) })
	return func() {
		_ = w.Close()
		running.Wait()
	}
}

func TestAFeedMayComeFirst(t *testing.T) {
	// The path is too long for a socket address.
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// A socket without a listener: sockets of scripts look like that for a moment while they are
	// created.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	name, done, err := socketIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		t.Fatal(err)
	}
	done()
	t.Setenv("FED", "no")
	end := feedLines(t, dir, "[\"FED=yes\"]\none\ntwo\n")
	defer end()
	if err := errors.Join(os.Remove(filepath.Join(dir, socketName)), unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
	in := fed(t, dir, tooLong)()
	if got := os.Getenv("FED"); got != "yes" {
		t.Errorf("the environment says %q", got)
	}
	lines := bufio.NewScanner(in)
	for _, want := range []string{"one", "two"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("line %q, %v; want %q", lines.Text(), lines.Err(), want)
		}
	}
}

func TestLinesOfFeedsAreNotMixedAndHalfALineIsNone(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", 300_000)
	const feeds = 4
	var ends []func()
	for range feeds {
		ends = append(ends, feedLines(t, dir, "[]\n"+long+"\n"+"half"))
	}
	in := fed(t, dir, tooLong)()
	all := make([]byte, feeds*(len(long)+1))
	if _, err := io.ReadFull(in, all); err != nil || !bytes.Equal(all, bytes.Repeat([]byte(long+"\n"), feeds)) {
		t.Errorf("the lines are mixed, or %v", err)
	}
	for _, end := range ends {
		end()
	}
	// As if no feed had come for idleTimeout. Do not reset the timer: the end of the last feed may start it
	// again.
	if err := in.listener.Close(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil {
		t.Errorf("then comes %q, %v", rest, err)
	}
}

func TestAFeedEndsWithItsScript(t *testing.T) {
	dir := t.TempDir()
	r, w := io.Pipe()
	defer w.Close()
	ended := make(chan error, 1)
	go func() { ended <- feed(t.Context(), r, dir) }()
	go func() { _, _ = io.WriteString(w, "[]\n") }()
	if err := fed(t, dir, tooLong)().Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAFeedWhoseScriptEndsWhileItSpeaksIsNoFailure(t *testing.T) {
	dir := t.TempDir()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- feed(t.Context(), r, dir) }()
	go func() {
		_, err := io.WriteString(w, "[]\n")
		for err == nil { // until the script no longer listens
			_, err = io.WriteString(w, strings.Repeat("x", 1<<16)+"\n")
		}
	}()
	if err := fed(t, dir, tooLong)().Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhoIsNoFeedIsNotHeard(t *testing.T) {
	dir := t.TempDir()
	listening := fed(t, dir, tooLong)
	conn, err := dialScript(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "no environment\nline\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("it is answered with %v", err)
	}
	var closed net.Error
	if err := conn.Close(); errors.As(err, &closed) {
		t.Error(err)
	}
	end := feedLines(t, dir, "[]\nheard\n")
	defer end()
	if line, err := bufio.NewReader(listening()).ReadString('\n'); line != "heard\n" || err != nil {
		t.Errorf("the first line is %q, %v", line, err)
	}
}

func TestListeningEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := listen(ctx, t.TempDir(), tooLong); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// A program may be killed after it has started the script, and before it has recorded that or fed it:
// then no program knows the script.
func TestAScriptThatNoFeedReachesEnds(t *testing.T) {
	in := fed(t, t.TempDir(), 0)() // as if no feed had come for idleTimeout
	if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil {
		t.Errorf("its input is %q, %v; want its end", rest, err)
	}
}
