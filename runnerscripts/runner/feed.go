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

// An execute-query that outlives its host has no standard input. It takes its
// lines from the feeds that connect to a socket, one for each host that is there.
// The first line of a feed is the environment: so what is secret in it comes
// neither into a file nor into the description of the command.
const socketName = "input"

// feedPatience is how long a feed waits for the script to listen. idleTimeout is how long
// the script waits for another feed after the last one has ended, before it takes that
// for the end of its input.
const (
	feedPatience = 10 * time.Second
	idleTimeout  = time.Minute
)

// fedInput is the input of an execute-query that is fed.
type fedInput struct {
	listener *net.UnixListener
	r        *io.PipeReader
	w        *io.PipeWriter
	started  chan struct{} // closed when the environment is known
	idle     time.Duration
	tasks    sync.WaitGroup

	writing sync.Mutex // one line at a time

	mu     sync.Mutex
	known  bool // the environment is
	closed bool
	feeds  map[net.Conn]struct{}
	timer  *time.Timer // runs while there are no feeds
}

// listen makes the input of a script in a folder, and waits for its first feed.
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
	l.SetUnlinkOnClose(false) // another script may own the name by then
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

// socketIn returns the address of the socket in a folder: one that is short
// enough, whatever the folder's name is. It is valid until done is called.
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
	return short, func() { _ = f.Close() }, nil // it was not read
}

func (in *fedInput) accept() {
	for {
		conn, err := in.listener.Accept()
		if err != nil {
			_ = in.w.CloseWithError(io.EOF)
			in.begin()
			return
		}
		if in.enter(conn) {
			in.tasks.Go(func() {
				in.take(conn)
				in.leave(conn)
			})
		}
	}
}

// enter counts a feed, unless the input has ended.
func (in *fedInput) enter(conn net.Conn) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		_ = conn.Close() // the feed sees that the script has ended
		return false
	}
	in.feeds[conn] = struct{}{}
	in.timer.Stop()
	return true
}

func (in *fedInput) leave(conn net.Conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	_ = conn.Close() // there is nothing to lose
	delete(in.feeds, conn)
	if len(in.feeds) == 0 && !in.closed {
		in.timer.Reset(in.idle)
	}
}

// take passes the lines of one feed on. Half a line, where its host was killed, is
// none.
func (in *fedInput) take(conn net.Conn) {
	lines := runnerscripts.NewLineReader(conn, 0)
	first, err := lines.Next()
	if err != nil || lines.Unterminated() || in.meet(first) != nil {
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

// meet takes the environment of the first feed; those of others are theirs.
func (in *fedInput) meet(line []byte) error {
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

// begin lets listen return where no feed has come.
func (in *fedInput) begin() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.known {
		in.known = true
		close(in.started)
	}
}

func (in *fedInput) Read(p []byte) (int, error) { return in.r.Read(p) }

// Close ends the input: a Read that waits, and the feeds.
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

// feed passes standard input on to the script that listens in a folder, until one
// of the two ends.
func feed(ctx context.Context, stdin io.ReadCloser, dir string) error {
	conn, err := dialScript(ctx, dir)
	if err != nil {
		return fmt.Errorf("reach the script: %w", err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		_, _ = io.Copy(io.Discard, conn) // to its end: the script's
		_ = stdin.Close()
	})
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, err = io.Copy(conn, stdin)
	_ = conn.Close() // what was written has arrived
	tasks.Wait()
	if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || ctx.Err() != nil {
		return nil // the script has ended, and says why
	}
	return err
}

// dialScript connects to a script that may not listen yet.
func dialScript(ctx context.Context, dir string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, feedPatience)
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
		// Until the script listens there is no socket, or one that refuses.
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
