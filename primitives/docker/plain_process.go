package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/agentenv-dev/agentenv/primitives"
)

// plainProcess is an exec of the engine.
type plainProcess struct {
	p      *plain
	cmd    primitives.Command
	tag    string
	conn   attachedExec
	source source
	pid    int         // in the container, also of its group and session
	unlink func() bool // from the caller's context
	timer  *time.Timer
	// within bounds what is done for the process on nobody's behalf, after the
	// context that it was started with.
	within func(time.Duration) (context.Context, context.CancelFunc)

	outputs *outputs
	input   io.WriteCloser
	tasks   sync.WaitGroup
	pumped  chan struct{} // closed when the engine has ended the streams
	look    chan struct{} // somebody believes that the command has exited
	exited  chan struct{} // closed when status and err are known

	released chan struct{} // closed by Close

	status primitives.ExitStatus
	err    error

	ending   sync.Once
	laddered chan struct{} // closed when the ladder has ended
	closing  sync.Once
	closeErr error

	mu     sync.Mutex
	reason primitives.ExitReason // why this handle ends it
	sent   map[int]bool          // signals of this handle
}

func newPlainProcess(p *plain, cmd primitives.Command, tag string, conn attachedExec) *plainProcess {
	proc := &plainProcess{
		p: p, cmd: cmd, tag: tag, conn: conn, outputs: newOutputs(), input: noInput{}, sent: map[int]bool{},
		source: source{r: conn.Reader, raw: cmd.TTY != nil},
		pumped: make(chan struct{}), look: make(chan struct{}, 1), exited: make(chan struct{}),
		released: make(chan struct{}), laddered: make(chan struct{}),
	}
	return proc
}

// begin waits until the command runs and starts what accompanies it.
func (proc *plainProcess) begin(ctx context.Context) error {
	outlives := context.WithoutCancel(ctx)
	proc.within = func(d time.Duration) (context.Context, context.CancelFunc) { return context.WithTimeout(outlives, d) }
	stop := context.AfterFunc(ctx, func() { proc.conn.Close() })
	var err error
	proc.pid, err = proc.firstLine()
	if !stop() {
		proc.abandon() //nolint:contextcheck // it outlasts the context
		return ctx.Err()
	}
	if err != nil {
		var said *startError
		if errors.As(err, &said) {
			if cause := proc.p.lasting(); cause != nil {
				return cause
			}
		}
		return err
	}
	if !proc.p.adopt(proc) {
		proc.abandon() //nolint:contextcheck // it outlasts the context
		return proc.p.usable()
	}
	proc.outputs.lower()
	proc.tasks.Go(proc.pump)
	if proc.cmd.Stdin || proc.cmd.TTY != nil {
		in := newInput(proc)
		proc.input = in
		proc.tasks.Go(in.feed)
	}
	if proc.cmd.Timeout > 0 {
		proc.timer = time.AfterFunc(proc.cmd.Timeout, func() { proc.end(primitives.ReasonTimeout) }) //nolint:contextcheck // ending outlasts the context
	}
	proc.unlink = context.AfterFunc(ctx, func() { proc.end(primitives.ReasonCancelled) }) //nolint:contextcheck // ending outlasts the context
	proc.tasks.Go(proc.watch)                                                             // it lets go of both
	return nil
}

// adopt counts a process among those of the handle; false if it is closed.
func (p *plain) adopt(proc *plainProcess) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.processes[proc] = struct{}{}
	return true
}

// callContext bounds a call of the engine that is made on behalf of something that
// has no context of its own.
func (p *plain) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, plainCall)
}

// plainCall is how long the engine may take for a short call.
const plainCall = 20 * time.Second

func (proc *plainProcess) mark() string { return plainExecMark + "=" + proc.tag }

// ID is the engine's name of the exec.
func (proc *plainProcess) ID() string { return proc.conn.id }

func (proc *plainProcess) Stdin() io.WriteCloser { return proc.input }

func (proc *plainProcess) Stdout() io.ReadCloser { return plainOutput{&proc.outputs.out, proc} }

func (proc *plainProcess) Stderr() io.ReadCloser { return plainOutput{&proc.outputs.err, proc} }

// plainOutput is an output as the caller has it.
type plainOutput struct {
	*output
	proc *plainProcess
}

// Close throws away what is still printed. It cannot break the pipe: the engine
// keeps it open, whatever its clients do.
func (o plainOutput) Close() error {
	o.close()
	select {
	case <-o.proc.exited:
		return nil
	default:
	}
	return o.proc.p.fail("close", o.proc.ID(), o.proc.p.unsupported("the pipe of a running command cannot be broken"))
}

// pump reads the streams to their end.
func (proc *plainProcess) pump() {
	defer close(proc.pumped)
	buf := make([]byte, 32<<10)
	for {
		n, kind, err := proc.source.read(buf)
		out := &proc.outputs.out
		if kind == stdcopy.Stderr || kind == stdcopy.Systemerr {
			out = &proc.outputs.err
		}
		if n > 0 {
			out.put(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// Wait implements primitives.Process.
func (proc *plainProcess) Wait(ctx context.Context) (primitives.ExitStatus, error) {
	select {
	case <-proc.exited:
		return proc.status, proc.err
	default:
	}
	select {
	case <-proc.exited:
		return proc.status, proc.err
	case <-ctx.Done():
		return primitives.ExitStatus{}, proc.p.fail("wait", proc.ID(), ctx.Err())
	}
}

// Signal implements primitives.Process.
func (proc *plainProcess) Signal(ctx context.Context, sig primitives.Signal) error {
	return proc.p.fail("signal", proc.ID(), proc.signal(ctx, sig))
}

func (proc *plainProcess) signal(ctx context.Context, sig primitives.Signal) error {
	number := signalNumber(sig)
	if number == 0 {
		return fmt.Errorf("%w: there is no signal %q", fs.ErrInvalid, sig)
	}
	if err := proc.p.usable(); err != nil {
		return err
	}
	if done, err := proc.hasExited(ctx); done || err != nil {
		return errors.Join(err, doneError(done))
	}
	proc.noteSignals(number)
	_, status, err := proc.p.request(ctx, proc.cmd.User, "kill", "-s", string(sig), "-"+strconv.Itoa(proc.pid))
	if err != nil || status == 0 {
		return err
	}
	done, err := proc.hasExited(ctx)
	if err == nil && !done {
		err = fmt.Errorf("%w: its processes belong to another user", fs.ErrPermission)
	}
	return errors.Join(err, doneError(done))
}

func doneError(done bool) error {
	if done {
		return os.ErrProcessDone
	}
	return nil
}

// hasExited asks the engine whether the command still runs: its number may have
// been given to another process already.
func (proc *plainProcess) hasExited(ctx context.Context) (bool, error) {
	select {
	case <-proc.exited:
		return true, nil
	default:
	}
	found, err := proc.inspect(ctx)
	if err != nil {
		return false, proc.p.explain(ctx, err)
	}
	if found.Running {
		return false, nil
	}
	select {
	case proc.look <- struct{}{}:
	default:
	}
	return true, nil
}

// Resize implements primitives.Process.
func (proc *plainProcess) Resize(ctx context.Context, size primitives.TerminalSize) error {
	err := fmt.Errorf("%w: the command has no terminal", errors.ErrUnsupported)
	if proc.cmd.TTY != nil {
		var done bool
		if done, err = proc.hasExited(ctx); err == nil {
			err = doneError(done)
		}
	}
	if err == nil {
		err = proc.p.eng.ContainerExecResize(ctx, proc.conn.id, container.ResizeOptions{Height: uint(size.Rows), Width: uint(size.Cols)})
		if err != nil {
			err = proc.p.explain(ctx, err)
		}
	}
	return proc.p.fail("resize", proc.ID(), err)
}

// Close implements primitives.Process.
func (proc *plainProcess) Close() error {
	proc.closing.Do(func() {
		ctx, cancel := proc.within(plainCall)
		done, err := proc.hasExited(ctx)
		cancel()
		if !done && err == nil {
			proc.end(primitives.ReasonCancelled)
			<-proc.laddered
		}
		proc.unlink()
		if done || err == nil {
			<-proc.exited
		}
		close(proc.released)
		proc.outputs.finish(os.ErrClosed)
		proc.conn.Close()
		proc.tasks.Wait()
		proc.p.mu.Lock()
		delete(proc.p.processes, proc)
		proc.p.mu.Unlock()
		if err != nil && proc.p.usable() == nil {
			proc.closeErr = proc.p.fail("close", proc.ID(), err)
		}
	})
	return proc.closeErr
}
