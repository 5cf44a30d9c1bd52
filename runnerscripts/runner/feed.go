package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// socketName is the socket of an execute-query that outlives its host. Such a script has no
// standard input: it reads lines from the feeds that connect to the socket, one for each connected
// host. The first line of a feed is the environment, so that its secrets come neither into a file
// nor into the description of the command.
const socketName = "input"

// feedTimeout is how long a feed waits for the script to listen. idleTimeout is how long the
// script waits for another feed after the last one has ended; then its input ends.
const (
	feedTimeout = 10 * time.Second
	idleTimeout = time.Minute
)

// fedInput is the input of an execute-query that reads from feeds.
type fedInput struct {
	listener *net.UnixListener
	r        *io.PipeReader
	w        *io.PipeWriter
	started  chan struct{} // closed when the environment is known
	idle     time.Duration
	tasks    sync.WaitGroup

	writing sync.Mutex // held while one line is written

	mu     sync.Mutex
	known  bool // whether the environment is known
	closed bool
	feeds  map[net.Conn]struct{}
	timer  *time.Timer // runs while there are no feeds
}

// listen creates the input of a script in dir and waits for its first feed.
func listen(ctx context.Context, dir string, wait time.Duration) (*fedInput, error) {
	name, done, err := socketIn(dir)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
	if err != nil {
		return nil, fmt.Errorf("listen for feeds: %w", err)
	}
	l.SetUnlinkOnClose(false) // another script may own the name at that time
	in := &fedInput{listener: l, started: make(chan struct{}), idle: wait, feeds: make(map[net.Conn]struct{})}
	in.r, in.w = io.Pipe()
	in.timer = time.AfterFunc(wait, func() { _ = l.Close() })
	in.tasks.Go(in.accept)
	select {
	case <-in.started:
		return in, nil
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), in.Close())
	}
}

// socketIn returns an address of the socket in dir that is short enough for any dir. The address is
// valid until done is called.
func socketIn(dir string) (name string, done func(), err error) {
	const longest = 100 // systems allow 104 or 108
	name = filepath.Join(dir, socketName)
	if len(name) <= longest {
		return name, func() {}, nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	short := fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), socketName)
	return short, func() { _ = f.Close() }, nil // an error is harmless: nothing was read or written
}

func (in *fedInput) accept() {
	for {
		conn, err := in.listener.Accept()
		if err != nil {
			_ = in.w.CloseWithError(io.EOF)
			in.unblockListen()
			return
		}
		if in.enter(conn) {
			in.tasks.Go(func() {
				in.copyLines(conn)
				in.leave(conn)
			})
		}
	}
}

// enter registers a feed, unless the input has ended.
func (in *fedInput) enter(conn net.Conn) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		_ = conn.Close() // tells the feed that the script has ended
		return false
	}
	in.feeds[conn] = struct{}{}
	in.timer.Stop()
	return true
}

func (in *fedInput) leave(conn net.Conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	_ = conn.Close() // nothing was written to it
	delete(in.feeds, conn)
	if len(in.feeds) == 0 && !in.closed {
		in.timer.Reset(in.idle)
	}
}

// copyLines passes on the lines of one feed. It drops an incomplete last line, which a killed host
// leaves.
func (in *fedInput) copyLines(conn net.Conn) {
	lines := runnerscripts.NewLineReader(conn, 0)
	first, err := lines.Next()
	if err != nil || lines.Unterminated() || in.setEnvironment(first) != nil {
		return
	}
	for {
		line, err := lines.Next()
		if err != nil || lines.Unterminated() {
			return
		}
		in.writing.Lock()
		_, err = in.w.Write(append(line[:len(line):len(line)], '\n'))
		in.writing.Unlock()
		if err != nil {
			return
		}
	}
}

// setEnvironment sets the environment from the first line of the first feed. It ignores the environment of
// later feeds.
func (in *fedInput) setEnvironment(line []byte) error {
	var env []string
	if err := json.Unmarshal(line, &env); err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.known {
		return nil
	}
	in.known = true
	for _, entry := range env {
		key, value, _ := strings.Cut(entry, "=")
		if err := os.Setenv(key, value); err != nil {
			return err
		}
	}
	close(in.started)
	return nil
}

// unblockListen lets listen return if no feed has come.
func (in *fedInput) unblockListen() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.known {
		in.known = true
		close(in.started)
	}
}

func (in *fedInput) Read(p []byte) (int, error) { return in.r.Read(p) }

// Close ends the input, a waiting Read, and the feeds.
func (in *fedInput) Close() error {
	err := in.listener.Close()
	_ = in.r.Close() // ends the writers; never fails
	in.mu.Lock()
	in.closed = true
	in.timer.Stop()
	for conn := range in.feeds {
		_ = conn.Close() // so that the feed ends, too
	}
	in.mu.Unlock()
	in.tasks.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// feed passes standard input on to the script that listens in dir, until one of the two ends.
func feed(ctx context.Context, stdin io.ReadCloser, dir string) error {
	conn, err := dialScript(ctx, dir)
	if err != nil {
		return fmt.Errorf("reach the script: %w", err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		_, _ = io.Copy(io.Discard, conn) // until the script closes the connection
		_ = stdin.Close()
	})
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, err = io.Copy(conn, stdin)
	_ = conn.Close() // all written bytes have arrived
	tasks.Wait()
	if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || ctx.Err() != nil {
		return nil // the script has ended, and reports why
	}
	return err
}

// dialScript connects to a script, which may not listen yet.
func dialScript(ctx context.Context, dir string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	name, done, err := socketIn(dir)
	if err != nil {
		return nil, err
	}
	defer done()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", name)
		// Until the script listens, the socket is missing or refuses connections.
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}
