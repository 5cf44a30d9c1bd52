package claude

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const (
	// grace is how long the program may take for each step of its end.
	grace = 3 * time.Second
	// drainTime is how long its output is still read after its end, in case a
	// process that it left behind holds the pipe.
	drainTime = 2 * time.Second
)

// process is one run of the program. Its output is read on a goroutine of its
// own, which waits while the handler of lines is slow: so does the program.
type process struct {
	cmd    *exec.Cmd
	stderr *tail
	done   chan struct{} // closed when it has ended and its output is read

	writing sync.Mutex
	stdin   io.WriteCloser

	exit error // valid after done; why reading ended it, else how it ended
}

// command is what to start.
type command struct {
	argv []string
	dir  string
	env  []string
	// resumes says that there is a conversation to go on with.
	resumes bool
	// maxLine is the longest line of output; zero means the usual limit.
	maxLine int
}

// start starts the program. handle gets each line of its output, one at a time,
// valid during the call.
func start(c command, handle func(line []byte)) (*process, error) {
	p := &process{
		cmd:    exec.Command(c.argv[0], c.argv[1:]...), //nolint:noctx // it is ended by close and kill, politely first
		stderr: &tail{limit: 16 << 10},
		done:   make(chan struct{}),
	}
	p.cmd.Dir, p.cmd.Env = c.dir, c.env
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = p.stderr
	p.cmd.WaitDelay = drainTime
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, stdin.Close())
	}
	p.cmd.Stdout = w
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, stdin.Close(), r.Close(), w.Close())
	}
	_ = w.Close() // the program has its own
	read := make(chan error, 1)
	go func() {
		err := readLines(r, c.maxLine, handle)
		if err != nil {
			p.signal(syscall.SIGKILL) // nobody can follow it any more
			_, _ = io.Copy(io.Discard, r)
		}
		read <- err
	}()
	go func() {
		defer close(p.done)
		err := p.cmd.Wait()
		p.killGroup()
		_ = os.Remove(fallbackSocket(p.cmd.Process.Pid))
		// A read deadline works on pipes; without it a survivor that holds the
		// pipe would keep the reader for ever.
		_ = r.SetReadDeadline(time.Now().Add(drainTime))
		unread := <-read
		_ = r.Close()
		switch {
		case unread != nil:
			err = unread
		case errors.Is(err, exec.ErrWaitDelay):
			err = nil
		}
		p.exit = err
	}()
	return p, nil
}

// readLines returns nil at the end of the output, or when a survivor holds it open
// for too long.
func readLines(r io.Reader, maxLine int, handle func([]byte)) error {
	lines := runnerscripts.NewLineReader(r, maxLine)
	for {
		line, err := lines.Next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("its output cannot be read: %w", err)
		}
		handle(line)
	}
}

// send writes one JSON line.
func (p *process) send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if _, err := p.stdin.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("write to Claude Code: %w", err)
	}
	return nil
}

// interrupt asks the program to stop its turn. The reply says nothing that the end
// of the query does not; a program that has ended ends the query, too.
func (p *process) interrupt() {
	body := json.RawMessage(`{"subtype":"interrupt"}`)
	_ = p.send(controlLine{Type: "control_request", RequestID: newUUID(), Request: body})
}

// signal sends a signal to the program and its process group, unless it has
// ended: its id may be another one's by then.
func (p *process) signal(sig syscall.Signal) {
	select {
	case <-p.done:
		return
	default:
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, sig) // ESRCH: it has ended
}

// killGroup ends what the program left behind in its process group, and waits
// for its end. The system tells nobody when the last process of a group is gone,
// so it has to be asked; one that nobody reaps is not waited for any longer than
// the output is.
func (p *process) killGroup() {
	p.signal(syscall.SIGKILL)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(drainTime); time.Now().Before(deadline); <-tick.C {
		if syscall.Kill(-p.cmd.Process.Pid, 0) != nil {
			return
		}
	}
}

// fallbackSocket is where the program listens for others of its kind if the path
// of the session is too long for a socket: in a folder that all sessions share,
// and a killed program leaves it there.
func fallbackSocket(pid int) string {
	return fmt.Sprintf("/tmp/cc-socks-%d/%d.sock", os.Getuid(), pid)
}

// close ends the program: politely by the end of its input, then by signals. It
// returns when it has ended.
func (p *process) close() {
	_ = p.stdin.Close()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		timer := time.NewTimer(grace)
		select {
		case <-p.done:
			timer.Stop()
			return
		case <-timer.C:
			p.signal(sig)
		}
	}
	<-p.done
}

// kill ends the program at once and returns when it has ended.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// crash says how the program ended and what it last said; only after done.
func (p *process) crash() string {
	how := "it ended"
	if p.exit != nil {
		how = "it ended: " + p.exit.Error()
	}
	if said := strings.TrimSpace(p.stderr.String()); said != "" {
		how += ": " + said
	}
	return how
}

// tail keeps the end of what is written to it.
type tail struct {
	limit int

	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.buf), "\uFFFD")
}
