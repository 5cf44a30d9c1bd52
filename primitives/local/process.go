package local

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/cgroup"
)

// process is a command that this handle started.
type process struct {
	sb    *Sandbox
	id    string
	pid   int
	grace time.Duration
	leaf  *cgroup.Leaf

	in       *input
	out, err *output
	tty      *terminal // nil without one

	watch   *exitWatch
	timer   *time.Timer
	offer   *time.Timer // of offerAgain; nil if it is not called
	stopCtx func() bool

	mu     sync.Mutex
	reaped bool                  // the PID may belong to another process now
	reason primitives.ExitReason // set by the first call that ends the command
	killed bool                  // Signal sent a SIGKILL
	ending sync.WaitGroup        // the ladder, if started

	done   chan struct{} // closed when status is known and the ladder has ended
	status primitives.ExitStatus

	closing sync.Once
	closed  chan struct{}
}

// adopt starts to serve a started child. The caller holds s.mu for reading, so that Terminate
// cannot miss the child.
func (s *Sandbox) adopt(ctx context.Context, c *child, cmd *primitives.Command, elapsed time.Duration) (*process, error) {
	p := &process{
		sb: s, id: c.id, pid: c.pid, leaf: c.leaf, grace: cmd.GracePeriod(),
		done: make(chan struct{}), closed: make(chan struct{}),
	}
	if err := p.connect(c); err != nil {
		// Out of descriptors: the command cannot be served, so it must not run.
		_ = unix.Kill(-c.pid, unix.SIGKILL)
		c.closeStreams()
		_, _ = reap(c.pid)
		s.releaseLeaf(c.leaf)
		return nil, err
	}
	s.procsMu.Lock()
	s.procs[p] = struct{}{}
	s.procsMu.Unlock()
	// The timer and ctx may fire at once; end waits for p.mu.
	p.mu.Lock()
	if cmd.Timeout > 0 {
		p.timer = time.AfterFunc(max(cmd.Timeout-elapsed, 0), func() { p.end(primitives.ReasonTimeout) })
	}
	if ctx.Done() != nil {
		p.stopCtx = context.AfterFunc(ctx, func() { p.end(primitives.ReasonCancelled) })
	}
	if s.onlyServes() {
		p.offer = time.AfterFunc(forkTime, p.offerAgain)
	}
	p.mu.Unlock()
	go p.await()
	return p, nil
}

// forkTime is how long a fork may take that was in progress when the command was offered to the
// kernel's OOM killer. The new process was not visible then.
const forkTime = 20 * time.Millisecond

// offerAgain offers the processes that such a fork has made.
func (p *process) offerAgain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		offerToOOM(p.pid)
	}
}

// connect registers the child's streams and its exit with the poller.
func (p *process) connect(c *child) (err error) {
	p.watch, err = watchExit(c.pid, c.pidfd)
	if err != nil {
		return err
	}
	if c.tty != nil {
		p.tty = &terminal{master: c.tty}
		p.in = &input{backend: c.backend, tty: p.tty}
		p.out = &output{tty: p.tty}
		p.err = &output{}
		c.tty = nil
		return nil
	}
	p.in = &input{backend: c.backend}
	if p.in.f, err = take(&c.stdin, "stdin"); err != nil {
		return err
	}
	p.out, p.err = &output{grow: &p.sb.grown}, &output{grow: &p.sb.grown}
	if p.out.f, err = take(&c.stdout, "stdout"); err != nil {
		return err
	}
	p.err.f, err = take(&c.stderr, "stderr")
	return err
}

// take makes a file of a descriptor and sets the descriptor to -1. It returns nil for -1.
func take(fd *int, name string) (*os.File, error) {
	if *fd < 0 {
		return nil, nil
	}
	f, err := pollable(*fd, name)
	*fd = -1
	return f, err
}

// await waits for the command to exit, reaps it and closes p.done.
func (p *process) await() {
	_ = p.watch.wait()
	p.mu.Lock()
	ws, err := reap(p.pid)
	p.reaped = true
	p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.offer != nil {
		p.offer.Stop()
	}
	if p.stopCtx != nil {
		p.stopCtx()
	}
	p.watch.close()
	p.in.exited()
	if p.tty != nil {
		p.tty.exited()
	}
	p.ending.Wait()
	p.mu.Lock()
	p.status = p.sb.exitStatus(ws, err, p.reason, p.killed)
	p.mu.Unlock()
	p.sb.releaseLeaf(p.leaf)
	close(p.done)
}

// reap waits for a child to exit and returns its status.
func reap(pid int) (unix.WaitStatus, error) {
	var ws unix.WaitStatus
	err := ignoreEINTR(func() error {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		return err
	})
	return ws, err
}

// end walks the ladder over the command's whole process tree, unless the command has exited or
// another call already ends it.
func (p *process) end(reason primitives.ExitReason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped || p.reason != "" || hasExited(p.pid) {
		return
	}
	p.reason = reason
	p.ending.Go(func() { endProcesses(p.family(), p.grace, nil) })
}

// setReason sets the exit reason of a command that Terminate ends.
func (p *process) setReason(reason primitives.ExitReason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped && p.reason == "" && !hasExited(p.pid) {
		p.reason = reason
	}
}

func (p *process) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.reaped
}

func (p *process) ID() string            { return p.id }
func (p *process) Stdin() io.WriteCloser { return p.in }
func (p *process) Stdout() io.ReadCloser { return p.out }
func (p *process) Stderr() io.ReadCloser { return p.err }

func (p *process) Wait(ctx context.Context) (primitives.ExitStatus, error) {
	select {
	case <-p.done:
		return p.status, nil
	default:
	}
	select {
	case <-p.done:
		return p.status, nil
	case <-ctx.Done():
		return primitives.ExitStatus{}, p.sb.fail("wait", p.id, ctx.Err())
	}
}

func (p *process) Signal(ctx context.Context, sig primitives.Signal) error {
	if err := ctx.Err(); err != nil {
		return p.sb.fail("signal", p.id, err)
	}
	number, err := signalNumber(sig)
	if err != nil {
		return p.sb.fail("signal", p.id, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The kernel does not reuse the leader's PID and group ID before the leader is reaped, and
	// reaping waits for p.mu.
	if p.reaped || hasExited(p.pid) {
		return p.sb.fail("signal", p.id, os.ErrProcessDone)
	}
	if err := unix.Kill(-p.pid, number); errors.Is(err, unix.ESRCH) {
		// The leader has moved to another group.
		err = unix.Kill(p.pid, number)
		return p.sb.fail("signal", p.id, err)
	} else if err != nil {
		return p.sb.fail("signal", p.id, err)
	}
	p.killed = p.killed || number == unix.SIGKILL
	return nil
}

func (p *process) Resize(ctx context.Context, size primitives.TerminalSize) error {
	if err := ctx.Err(); err != nil {
		return p.sb.fail("resize", p.id, err)
	}
	if p.tty == nil {
		return p.sb.fail("resize", p.id, errors.ErrUnsupported)
	}
	if !p.running() {
		return p.sb.fail("resize", p.id, os.ErrProcessDone)
	}
	return p.sb.fail("resize", p.id, p.tty.resize(size))
}

func (p *process) Close() error {
	p.closing.Do(func() {
		p.end(primitives.ReasonCancelled)
		p.closeStreams()
		<-p.done
		p.sb.procsMu.Lock()
		delete(p.sb.procs, p)
		p.sb.procsMu.Unlock()
		close(p.closed)
	})
	<-p.closed
	return nil
}

func (p *process) closeStreams() {
	_ = p.in.Close()
	_ = p.out.Close()
	_ = p.err.Close()
	if p.tty != nil {
		p.tty.close()
	}
}
