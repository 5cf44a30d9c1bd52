package testmodal

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// command is a command to run.
type command struct {
	args           []string
	env            map[string]string // the complete environment
	dir            string
	timeout        time.Duration // 0 means none
	stdout, stderr bool          // keep the output instead of discarding it
	pty            *pb.PTYInfo   // nil means none
}

// execution is one command in a sandbox: the entrypoint or a later one. Its output is kept
// until the server ends.
type execution struct {
	stdout, stderr *spool // nil means that the output is discarded
	kill           func() // kills the command and its descendants

	done   chan struct{} // closed when the command itself has ended
	code   int32         // after done
	signal int32         // after done; 0 means none
	ended  chan struct{} // closed after done and the end of all output

	writing  sync.Mutex // held while writing to stdin
	stdin    *os.File
	eof      func() // ends stdin
	mu       sync.Mutex
	accepted uint64 // bytes of stdin
	closed   bool   // stdin
}

// start starts a command in the sandbox. The caller must keep the sandbox alive meanwhile.
func (sb *sandbox) start(c command) (*execution, error) {
	e := &execution{done: make(chan struct{}), ended: make(chan struct{})}
	if c.stdout {
		e.stdout = newSpool(sb.dir)
	}
	if c.stderr {
		e.stderr = newSpool(sb.dir)
	}
	var err error
	switch {
	case c.args[0] == fsToolsPath:
		err = e.runTools(sb, c)
	case c.pty != nil:
		err = e.runTerminal(sb, c)
	default:
		err = e.runPipes(sb, c)
	}
	if err != nil {
		return nil, err
	}
	if c.timeout > 0 {
		timer := time.NewTimer(c.timeout)
		sb.running.Go(func() {
			defer timer.Stop()
			select {
			case <-timer.C:
				e.kill()
			case <-e.done:
			}
		})
	}
	return e, nil
}

// runPipes starts a command with pipes.
func (e *execution) runPipes(sb *sandbox, c command) error {
	in, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	e.stdin, e.eof = stdin, func() { _ = stdin.Close() }
	theirs := []*os.File{in, nil, nil}
	var copies sync.WaitGroup
	for i, s := range []*spool{e.stdout, e.stderr} {
		if s == nil {
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(append(theirs, stdin))
			return err
		}
		theirs[i+1] = w
		copies.Go(func() { s.fill(r) })
	}
	cmd, err := sb.spawn(c, theirs, &syscall.SysProcAttr{Setsid: true})
	closeAll(theirs)
	if err != nil {
		closeAll([]*os.File{stdin})
		copies.Wait()
		return err
	}
	e.watch(sb, cmd, &copies)
	return nil
}

// runTerminal starts a command with its own terminal.
func (e *execution) runTerminal(sb *sandbox, c command) error {
	var master, tty *os.File
	err := sb.space.inside(func() (err error) {
		master, tty, err = pty.Open()
		return err
	})
	if err != nil {
		return err
	}
	_ = pty.Setsize(master, &pty.Winsize{Rows: uint16(c.pty.GetWinszRows()), Cols: uint16(c.pty.GetWinszCols())}) // sizes of terminals
	if c.pty.GetEnvTerm() != "" {
		c.env["TERM"] = c.pty.GetEnvTerm()
	}
	e.stdin, e.eof = master, func() { _, _ = master.Write([]byte{4}) }
	cmd, err := sb.spawn(c, []*os.File{tty, tty, tty}, &syscall.SysProcAttr{Setsid: true, Setctty: true})
	_ = tty.Close()
	if err != nil {
		_ = master.Close()
		return err
	}
	if e.stderr != nil {
		e.stderr.finish()
	}
	out := e.stdout
	if out == nil {
		out = newSpool(sb.dir)
	}
	var copies sync.WaitGroup
	copies.Go(func() { out.fill(master) })
	e.watch(sb, cmd, &copies)
	return nil
}

// watch waits, in the background, for the started command and for the rest of its output.
func (e *execution) watch(sb *sandbox, cmd *exec.Cmd, copies *sync.WaitGroup) {
	e.kill = func() {
		select {
		case <-e.done:
			if isolated() {
				return // its ID may be reused, and closing the space kills what it left
			}
		default:
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	sb.running.Go(func() {
		_ = cmd.Wait() // ProcessState has the result
		if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			e.signal = int32(w.Signal()) // a small number
		}
		e.code = int32(cmd.ProcessState.ExitCode()) // a byte
		close(e.done)
		copies.Wait()
		close(e.ended)
	})
}

// fill appends everything read from a pipe or a terminal, and closes it at EOF.
func (s *spool) fill(r *os.File) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{r}, make([]byte, 64<<10)) // a terminal ends with an error
	_ = r.Close()
	s.finish()
}

// spawn starts a process in the sandbox with its standard files. A nil file is /dev/null.
func (sb *sandbox) spawn(c command, files []*os.File, attr *syscall.SysProcAttr) (*exec.Cmd, error) {
	cmd := &exec.Cmd{Args: c.args, Dir: c.dir, SysProcAttr: attr, Stdin: files[0]}
	for name, value := range c.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if files[1] != nil {
		cmd.Stdout = files[1]
	}
	if files[2] != nil {
		cmd.Stderr = files[2]
	}
	err := sb.space.inside(func() error {
		if info, err := os.Stat(c.dir); err != nil || !info.IsDir() {
			return status.Errorf(codes.InvalidArgument, "the working directory %q is not a directory", c.dir)
		}
		path, err := lookPath(c.args[0], c.dir, c.env["PATH"])
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "exec: %q: %v", c.args[0], err)
		}
		cmd.Path = path
		return cmd.Start()
	})
	return cmd, err
}

// lookPath finds a program as a shell with this PATH does.
func lookPath(name, dir, path string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, executable(name)
	}
	for _, folder := range filepath.SplitList(path) {
		if full := filepath.Join(folder, name); executable(full) == nil {
			return full, nil
		}
	}
	return "", exec.ErrNotFound
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err == nil && (info.IsDir() || info.Mode()&0o111 == 0) {
		err = fs.ErrPermission
	}
	return err
}

// write writes to stdin at an offset. It skips bytes that were accepted before, so calls can be
// repeated, and refuses a gap. When ctx is done, it stops; the bytes written until then are
// accepted.
func (e *execution) write(ctx context.Context, offset uint64, data []byte, eof bool) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	accepted, closed := e.status()
	if offset > accepted {
		return status.Errorf(codes.InvalidArgument, "stdin offset %d leaves a gap after %d", offset, accepted)
	}
	data = data[min(uint64(len(data)), accepted-offset):]
	if len(data) > 0 {
		if closed {
			return status.Error(codes.FailedPrecondition, "stdin is closed")
		}
		if err := e.writeSome(ctx, data); err != nil {
			return err
		}
	}
	if eof && !closed {
		e.mu.Lock()
		e.closed = true
		e.mu.Unlock()
		e.eof()
	}
	return nil
}

// writeSome writes to stdin until ctx is done. The caller holds e.writing.
func (e *execution) writeSome(ctx context.Context, data []byte) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		e.interrupt()
		close(interrupted)
	})
	n, err := e.stdin.Write(data)
	if !stop() {
		<-interrupted
		_ = e.stdin.SetWriteDeadline(time.Time{})
	}
	e.mu.Lock()
	e.accepted += uint64(n) // not negative
	e.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return status.Error(codes.Aborted, "the write was given up")
	case errors.Is(err, syscall.EPIPE), errors.Is(err, fs.ErrClosed), errors.Is(err, syscall.EIO):
		return status.Error(codes.FailedPrecondition, "the command does not read stdin any more")
	default:
		return err
	}
}

// interrupt ends a pending write to stdin.
func (e *execution) interrupt() { _ = e.stdin.SetWriteDeadline(time.Unix(1, 0)) }

// evict ends a pending write and returns how many bytes were accepted.
func (e *execution) evict() (accepted uint64, closed bool) {
	e.interrupt()
	e.writing.Lock()
	defer e.writing.Unlock()
	_ = e.stdin.SetWriteDeadline(time.Time{})
	return e.status()
}

func (e *execution) status() (accepted uint64, closed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.accepted, e.closed
}

// free releases the files of an execution that has ended.
func (e *execution) free() {
	_ = e.stdin.Close()
	for _, s := range []*spool{e.stdout, e.stderr} {
		if s != nil {
			s.free()
		}
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
