// Package child runs the program of an agent as a child process: its output is
// read line by line, JSON lines are written to its input, and it is ended by one
// ladder of steps, politely first, with all that it started.
package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	// grace is how long a program may take for each step of its end.
	grace = 3 * time.Second
	// drainTime is how long more of its output is awaited after its end, in case a
	// process that it left behind holds the pipe.
	drainTime = 2 * time.Second
	// mostLeft is how much output a program can leave in the pipe: the largest that
	// Linux gives to everybody.
	mostLeft = 1 << 20
	// tailSize is how much of the end of standard error is kept.
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
	// Read, if not nil, reads the output instead of a handler of lines, for
	// programs whose empty lines matter. An error of it ends the program.
	Read func(io.Reader) error
	// Stderr, if not nil, gets each line of standard error, valid during the call,
	// and says whether it may be among what Crash shows. Done waits for it.
	Stderr func(line []byte) bool
	// Ended, if not nil, removes what a program leaves behind that is killed. It
	// is called with its id, when it has ended and what is left of its process group
	// was killed.
	Ended func(pid int)
}

// Process is one run of a program in a process group of its own. Its output is
// read on a goroutine of its own, which waits while the handler of lines is slow:
// so does the program. The methods may be called at any time from any goroutine.
type Process struct {
	cmd    *exec.Cmd
	reap   func() error // waits for the program; again it has the same answer
	stderr *tail.Buffer
	done   chan struct{}

	signalling sync.Mutex
	over       bool // what was left is ended, and the id may be another one's

	writing sync.Mutex
	stdin   io.WriteCloser

	exit error // valid after done; why reading ended it, else how it ended
}

// Start starts a program. handle gets each line of its output that is not empty,
// one at a time, valid during the call. [Process.Close] or [Process.Kill] must
// follow.
func Start(c Command, handle func(line []byte)) (*Process, error) {
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
	_, _ = w.Close(), errW.Close() // the program has its own
	read := make(chan error, 1)
	if c.Read == nil {
		c.Read = func(r io.Reader) error { return readLines(r, c.MaxLine, handle) }
	}
	out, said := newOutput(r), newOutput(errR)
	go func() { read <- p.read(out, c.Read) }()
	heard := make(chan struct{})
	go func() { keepEnd(p.stderr, said, c.Stderr); close(heard) }()
	go p.wait(out, said, read, heard, c.Ended)
	return p, nil
}

// output is what a program prints. A late reader still gets what the program left in
// the pipe; output does not wait for a survivor that holds the pipe.
type output struct {
	r    *os.File
	left int // how much is read without waiting, once the deadline has passed
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

// readNow takes what is there although the time is over: a reader that stood still
// finds both.
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

// end says that the program has ended. A read deadline works on pipes; without it a
// survivor that holds the pipe would keep the reader for ever.
func (o *output) end() { _ = o.r.SetReadDeadline(time.Now().Add(drainTime)) }

// read reads the output until it ends. It returns nil at its end, or when a
// survivor holds it open for too long.
func (p *Process) read(r io.Reader, from func(io.Reader) error) error {
	err := from(r)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	p.Signal(syscall.SIGKILL) // its output cannot be followed any more
	_, _ = io.Copy(io.Discard, r)
	return fmt.Errorf("its output cannot be read: %w", err)
}

// readLines hands the lines over.
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

// wait ends the program's descendants, and reaps it. Until it is reaped no other process
// gets its id, which is that of the group: wait signals the group before.
func (p *Process) wait(out, said *output, read <-chan error, heard <-chan struct{}, ended func(int)) {
	defer close(p.done)
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

// Send writes v as one JSON line. An error means mostly that the program has
// ended, which Done and Crash tell better.
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

// CloseInput ends the input of the program, which may work on; again it does
// nothing.
func (p *Process) CloseInput() {
	p.writing.Lock()
	defer p.writing.Unlock()
	_ = p.stdin.Close() // an error means that the program has ended
}

// Err returns how the program ended, nil for the exit status 0; only after Done.
func (p *Process) Err() error { return p.exit }

// Signal sends a signal to the program and its process group, unless it has
// ended: its id may be another one's by then.
func (p *Process) Signal(sig syscall.Signal) {
	p.signalling.Lock()
	defer p.signalling.Unlock()
	if !p.over {
		_ = syscall.Kill(-p.PID(), sig) // ESRCH: it has ended
	}
}

// endGroup ends what the program left behind in its process group.
func (p *Process) endGroup() {
	p.signalling.Lock()
	defer p.signalling.Unlock()
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	p.over = true
}

// awaitGroup waits for the end of the process group. It polls, because the system has no
// notification for the end of a group; it waits for a process that is never reaped no
// longer than for the output.
func (p *Process) awaitGroup() {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(drainTime); time.Now().Before(deadline); <-tick.C {
		if syscall.Kill(-p.PID(), 0) != nil {
			return
		}
	}
}

// Close ends the program: politely by the end of its input, then by signals. It
// returns when it has ended; again it does nothing.
func (p *Process) Close() {
	_ = p.stdin.Close()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		timer := time.NewTimer(grace)
		select {
		case <-p.done:
			timer.Stop()
			return
		case <-timer.C:
			p.Signal(sig)
		}
	}
	<-p.done
}

// Kill ends the program at once and returns when it has ended.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Crash says how the program ended and what it last said on standard error; only
// after Done.
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
