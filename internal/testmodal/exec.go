package testmodal

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// execution is one command in a sandbox, whether it is the entrypoint's or one that
// was started later. What it wrote stays until the sandbox's end.
type execution struct {
	stdout, stderr *spool // nil is thrown away
	done           chan struct{}
	exit           syscall.WaitStatus // after done

	mu       sync.Mutex
	stdin    io.WriteCloser
	accepted uint64 // bytes of stdin
	closed   bool   // stdin
	kill     func()
}

// command is what to run.
type command struct {
	args    []string
	env     []string // all of it
	dir     string
	timeout time.Duration // 0 is none
	stdout  bool          // keep it
	stderr  bool
	pty     *pb.PTYInfo // nil is none
}

// start runs a command in the sandbox.
func (sb *sandbox) start(c command) (*execution, error) {
	e := &execution{done: make(chan struct{})}
	var err error
	if c.stdout {
		if e.stdout, err = newSpool(sb.dir); err != nil {
			return nil, err
		}
	}
	if c.stderr {
		if e.stderr, err = newSpool(sb.dir); err != nil {
			return nil, err
		}
	}
	path, err := exec.LookPath(c.args[0])
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%v", err)
	}
	cmd := &exec.Cmd{Path: path, Args: c.args, Env: c.env, Dir: c.dir, SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	if err := e.connect(sb, cmd); err != nil {
		return nil, err
	}
	return e, nil
}

// connect starts the process with pipes and keeps what it writes.
func (e *execution) connect(sb *sandbox, cmd *exec.Cmd) error {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	e.stdin = stdin
	var copies sync.WaitGroup
	var ours []*os.File
	attach := func(s *spool) (*os.File, error) {
		if s == nil {
			return nil, nil
		}
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ours = append(ours, w)
		copies.Go(func() {
			_, _ = io.CopyBuffer(struct{ io.Writer }{s}, struct{ io.Reader }{r}, make([]byte, 64<<10))
			_ = r.Close()
			s.finish()
		})
		return w, nil
	}
	out, err := attach(e.stdout)
	if err == nil && out != nil {
		cmd.Stdout = out
	}
	errw, err2 := attach(e.stderr)
	if err2 == nil && errw != nil {
		cmd.Stderr = errw
	}
	err = errors.Join(err, err2)
	if err == nil {
		err = cmd.Start()
	}
	for _, f := range ours {
		_ = f.Close()
	}
	if err != nil {
		copies.Wait()
		return err
	}
	e.kill = func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	sb.running.Go(func() {
		_ = cmd.Wait() // the state says it
		e.exit, _ = cmd.ProcessState.Sys().(syscall.WaitStatus)
		close(e.done)
		copies.Wait()
	})
	return nil
}

// write adds to stdin at an offset. What was accepted before is dropped, so a call
// can be repeated; a gap is refused.
func (e *execution) write(offset uint64, data []byte, eof bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if offset > e.accepted {
		return status.Errorf(codes.InvalidArgument, "stdin offset %d leaves a gap after %d", offset, e.accepted)
	}
	if skip := e.accepted - offset; skip < uint64(len(data)) {
		data = data[skip:]
	} else {
		data = nil
	}
	if len(data) > 0 {
		if e.closed {
			return status.Error(codes.FailedPrecondition, "stdin is closed")
		}
		n, err := e.stdin.Write(data)
		e.accepted += uint64(n)
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, fs.ErrClosed) {
			return status.Error(codes.FailedPrecondition, "the command does not read stdin any more")
		}
		if err != nil {
			return err
		}
	}
	if eof && !e.closed {
		e.closed = true
		_ = e.stdin.Close()
	}
	return nil
}
