// Package child runs an agent's program as a child process. It reads the output line by line,
// writes JSON lines to the input, and ends the program and its descendants in steps, gracefully
// first.
package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	// grace limits each step of ending a program.
	grace = 3 * time.Second
	// drainTime is how long output is read after the program's end, in case an orphan holds the
	// pipe.
	drainTime = 2 * time.Second
	// mostLeft is the most output that can remain in the pipe: the largest pipe that Linux
	// grants without privileges.
	mostLeft = 1 << 20
	// tailSize is how many of the last bytes of standard error are kept.
	tailSize = 16 << 10
)

// Command is what to start.
type Command struct {
	Args []string // the program, as an absolute path, and its arguments
	Dir  string
	Env  []string // the whole environment
	// MaxLine is the longest line of output, in bytes; zero means
	// runnerscripts.DefaultMaxLine. A longer one ends the program.
	MaxLine int
	// Read, if not nil, reads the output instead of the line handler, for programs whose empty
	// lines matter. An error ends the program.
	Read func(io.Reader) error
	// Stderr, if not nil, receives each line of standard error, valid during the call, and
	// reports whether Crash may show it. Done waits for it.
	Stderr func(line []byte) bool
	// Unpack, if not empty, is the folder in which Start creates a temporary folder for the program,
	// unless Env has BUN_TMPDIR. Unpack is created if it is missing, and the temporary folder is
	// removed when the program has ended. Without it a program built with Bun, such as OpenCode,
	// leaves 5 MB in /tmp at each start.
	Unpack string
	// Ended, if not nil, cleans up after a program, which may have been killed. It receives the
	// process ID, after the program has ended and the rest of its process group was killed.
	Ended func(pid int)
}

// Process is one run of a program in its own process group. A separate goroutine reads its
// output; a slow line handler blocks the program. The methods may be called at any time from
// any goroutine.
type Process struct {
	cmd    *exec.Cmd
	reap   func() error // waits for the program; later calls return the same error
	stderr *tail.Buffer
	done   chan struct{}

	signalling sync.Mutex
	over       bool // the group has ended, and its ID may be reused

	writing sync.Mutex
	stdin   io.WriteCloser

	exit error // valid after done; why reading ended, else how the program ended
}

// Start starts a program. handle receives each non-empty line of its output, one at a time,
// valid during the call. The caller must call [Process.Close] or [Process.Kill].
func Start(c Command, handle func(line []byte)) (_ *Process, err error) {
	unpacked, err := c.makeUnpackFolder()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			removeUnpacked(unpacked)
		}
	}()
	if unpacked != "" {
		c.Env = append(slices.Clone(c.Env), "BUN_TMPDIR="+unpacked)
	}
	p := &Process{
		cmd:    exec.Command(c.Args[0], c.Args[1:]...), //nolint:noctx // it is ended by Close and Kill, politely first
		stderr: &tail.Buffer{Max: tailSize},
		done:   make(chan struct{}),
	}
	p.cmd.Dir, p.cmd.Env = c.Dir, c.Env
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.reap = sync.OnceValue(p.cmd.Wait)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, stdin.Close())
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, stdin.Close(), r.Close(), w.Close())
	}
	p.cmd.Stdout, p.cmd.Stderr = w, errW
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, stdin.Close(), r.Close(), w.Close(), errR.Close(), errW.Close())
	}
	_, _ = w.Close(), errW.Close() // the program has its own copies
	read := make(chan error, 1)
	if c.Read == nil {
		c.Read = func(r io.Reader) error { return readLines(r, c.MaxLine, handle) }
	}
	out, said := newOutput(r), newOutput(errR)
	go func() { read <- p.read(out, c.Read) }()
	heard := make(chan struct{})
	go func() { keepEnd(p.stderr, said, c.Stderr); close(heard) }()
	go func() {
		defer close(p.done)
		p.wait(out, said, read, heard, c.Ended)
		removeUnpacked(unpacked)
	}()
	return p, nil
}

// makeUnpackFolder creates the temporary folder for the program, and returns "" if there shall be
// none.
func (c Command) makeUnpackFolder() (string, error) {
	if c.Unpack == "" || Lookup(c.Env, "BUN_TMPDIR") != "" {
		return "", nil
	}
	if err := os.MkdirAll(c.Unpack, 0o700); err != nil {
		return "", err
	}
	return os.MkdirTemp(c.Unpack, "unpacked-*")
}

// removeUnpacked removes the temporary folder of a program. Files that cannot be removed are removed
// with the session.
func removeUnpacked(folder string) {
	if folder != "" {
		_ = os.RemoveAll(folder)
	}
}

// output is the output of a program. A slow reader still gets what remains in the pipe after
// the program's end, but output does not wait for an orphan that holds the pipe.
type output struct {
	r    *os.File
	left int // bytes to read without blocking after the deadline
}

func newOutput(r *os.File) *output { return &output{r: r, left: mostLeft} }

func (o *output) Read(p []byte) (int, error) {
	n, err := o.r.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) && o.left > 0 {
		n, err = o.readNow(p)
		o.left -= n
	}
	return n, err
}

// readNow reads the available data after the deadline: a blocked reader may find both expired
// deadline and data.
func (o *output) readNow(p []byte) (n int, err error) {
	raw, err := o.r.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) {
		for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
			n, err = syscall.Read(int(fd), p)
		}
	})
	switch {
	case cerr != nil:
		return 0, cerr
	case errors.Is(err, syscall.EAGAIN):
		return 0, os.ErrDeadlineExceeded
	case n == 0 && err == nil:
		return 0, io.EOF
	}
	return max(n, 0), err
}

// end is called when the program has ended. It sets a read deadline, because an orphan that
// holds the pipe would block the reader forever.
func (o *output) end() { _ = o.r.SetReadDeadline(time.Now().Add(drainTime)) }

// read reads the output to its end. It returns nil at the end, or when an orphan holds the pipe
// open for too long.
func (p *Process) read(r io.Reader, from func(io.Reader) error) error {
	err := from(r)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	p.Signal(syscall.SIGKILL) // the program is useless without a reader
	_, _ = io.Copy(io.Discard, r)
	return fmt.Errorf("its output cannot be read: %w", err)
}

// readLines passes the lines to handle.
func readLines(r io.Reader, maxLine int, handle func([]byte)) error {
	lines := runnerscripts.NewLineReader(r, maxLine)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		handle(line)
	}
}

// wait ends the program's descendants, and reaps the program. It signals the group before it
// reaps: afterwards another process may get the ID.
func (p *Process) wait(out, said *output, read <-chan error, heard <-chan struct{}, ended func(int)) {
	awaitExit(p.cmd.Process.Pid, p.reap)
	said.end()
	patience.Wait(heard, drainTime)
	p.endGroup()
	if ended != nil {
		ended(p.PID())
	}
	err := p.reap()
	p.awaitGroup()
	out.end()
	unread := <-read
	<-heard
	_, _ = out.r.Close(), said.r.Close()
	if unread != nil {
		err = unread
	}
	p.exit = err
}

// PID returns the id of the program's process, which is also that of its group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended and its output is read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Send writes v as one JSON line. An error usually means that the program has ended, which Done
// and Crash report better.
func (p *Process) Send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if _, err := p.stdin.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("write to the agent: %w", err)
	}
	return nil
}

// CloseInput closes the program's input; the program may work on. Later calls do nothing.
func (p *Process) CloseInput() {
	p.writing.Lock()
	defer p.writing.Unlock()
	_ = p.stdin.Close() // an error means that the program has ended
}

// Err returns how the program ended, nil for exit status 0. It is valid after Done.
func (p *Process) Err() error { return p.exit }

// Signal sends a signal to the program's process group, unless the program has ended and its ID
// may be reused.
func (p *Process) Signal(sig syscall.Signal) {
	p.signalling.Lock()
	defer p.signalling.Unlock()
	if !p.over {
		_ = syscall.Kill(-p.PID(), sig) // ESRCH: it has ended
	}
}

// endGroup kills the orphans in the program's process group.
func (p *Process) endGroup() {
	p.signalling.Lock()
	defer p.signalling.Unlock()
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	p.over = true
}

// awaitGroup waits for the end of the process group. It polls, because the system cannot notify
// about the end of a group. It stops waiting with the output, in case a process is never
// reaped.
func (p *Process) awaitGroup() {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(drainTime); time.Now().Before(deadline); <-tick.C {
		if syscall.Kill(-p.PID(), 0) != nil {
			return
		}
	}
}

// Close ends the program: gracefully by closing its input, then by signals. It returns when the
// program has ended; later calls do nothing.
func (p *Process) Close() {
	_ = p.stdin.Close()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if patience.Wait(p.done, grace) {
			return
		}
		p.Signal(sig)
	}
	<-p.done
}

// Kill kills the program and waits for its end.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Crash describes how the program ended, with the end of its standard error. It is valid after
// Done.
func (p *Process) Crash() string {
	how := "it ended"
	if p.exit != nil {
		how = "it ended: " + p.exit.Error()
	}
	if said := p.stderr.String(); said != "" {
		how += ": " + said
	}
	return how
}
