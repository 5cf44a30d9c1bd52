package local

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/patience"
	"github.com/agentenv-dev/agentenv/primitives"
)

// burstTime is how long Run waits for a command in its own thread. Most commands of agents end
// within that time and need neither goroutines nor the poller. It is so short that Run need not
// watch the context meanwhile.
const burstTime = 4 * time.Millisecond

// Run implements primitives.Runner.
func (s *Sandbox) Run(ctx context.Context, cmd primitives.Command, opts primitives.RunOptions) (primitives.RunResult, error) {
	target := program(&cmd)
	if err := primitives.CheckRun(cmd); err != nil {
		return primitives.RunResult{}, s.fail("run", target, err)
	}
	cmd.Stdin = opts.Stdin != nil
	limit := opts.MaxOutput
	if limit == 0 {
		limit = primitives.DefaultMaxOutput
	}
	r := run{out: collector{limit: limit}, err: collector{limit: limit}}
	p, err := s.startAndPoll(ctx, &cmd, &r)
	if err != nil {
		return primitives.RunResult{}, s.fail("run", target, err)
	}
	if p != nil {
		err = r.finish(ctx, p, opts.Stdin)
	}
	return primitives.RunResult{
		Stdout: r.out.data, Stderr: r.err.data,
		StdoutDropped: r.out.dropped, StderrDropped: r.err.dropped,
		Status: r.status,
	}, err
}

// run collects the output and the exit status of a command.
type run struct {
	out, err collector
	status   primitives.ExitStatus
}

// startAndPoll starts the command and waits up to burstTime for its end. It returns the process of a
// command that still runs.
func (s *Sandbox) startAndPoll(ctx context.Context, cmd *primitives.Command, r *run) (*process, error) {
	end, err := s.begin("run", program(cmd))
	if err != nil {
		return nil, err
	}
	defer end()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	started := time.Now()
	c, err := s.start(cmd, outputFiles{})
	if err != nil {
		return nil, err
	}
	if burstSupported && c.pidfd >= 0 && !cmd.Stdin && r.burst(c, cmd, started) {
		ws, err := reap(c.pid)
		r.status = s.exitStatus(ws, err, "", false)
		_ = unix.Close(c.pidfd)
		c.closeStreams()
		s.releaseLeaf(c.leaf)
		return nil, nil
	}
	return s.adopt(ctx, c, cmd, time.Since(started))
}

// burst reads the streams. It returns true when the streams and the process have ended, false when
// the time is over.
func (r *run) burst(c *child, cmd *primitives.Command, started time.Time) bool {
	most := burstTime
	if cmd.Timeout > 0 {
		most = min(most, cmd.Timeout)
	}
	fds := [3]unix.PollFd{
		{Fd: int32(c.stdout), Events: unix.POLLIN},
		{Fd: int32(c.stderr), Events: unix.POLLIN}, // poll ignores -1
		{Fd: int32(c.pidfd), Events: unix.POLLIN},
	}
	open := 3
	if c.stderr < 0 {
		open--
	}
	for open > 0 {
		left := most - time.Since(started)
		if left <= 0 {
			return false
		}
		n, err := unix.Poll(fds[:], int((left+time.Millisecond-1)/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
		for i, into := range [...]*collector{&r.out, &r.err, nil} {
			if n <= 0 || fds[i].Revents == 0 {
				continue
			}
			if fds[i].Revents&unix.POLLIN != 0 && into != nil {
				if into.readOnce(int(fds[i].Fd)) {
					continue
				}
			}
			fds[i].Fd = -1
			open--
		}
	}
	return true
}

// finish collects the output of a command that outlasts burst, until it ends.
func (r *run) finish(ctx context.Context, p *process, stdin io.Reader) error {
	var drains sync.WaitGroup
	drains.Go(func() { drain(p.out, &r.out) })
	drains.Go(func() { drain(p.err, &r.err) })
	if stdin != nil {
		// Not joined: stdin may block, and only the caller can end that. A command may exit without
		// reading its input.
		go func() {
			_, _ = io.Copy(p.in, stdin)
			_ = p.in.Close()
		}()
	}
	// When ctx is done the command ends, so this Wait returns how it ended.
	status, err := p.Wait(context.WithoutCancel(ctx))
	r.status = status
	return errors.Join(err, p.endOutput(&drains))
}

// endOutput waits for the drains of a command that has exited. If they do not end within drainDelay
// it waits only until they have read what the pipes hold. It closes the process.
func (p *process) endOutput(drains *sync.WaitGroup) error {
	drained := make(chan struct{})
	go func() { drains.Wait(); close(drained) }()
	if !patience.Wait(drained, drainDelay) && p.out.hurry() && p.err.hurry() {
		<-drained
	}
	err := p.Close() // also ends the drains
	<-drained
	return err
}

// collector keeps the first bytes of a stream and counts the others.
type collector struct {
	data    []byte
	limit   int64
	dropped int64
	over    []byte // buffer for bytes that are dropped
}

const leastRead = 4 << 10

// space returns the buffer to read into: free room in data or, when the limit is reached, a buffer
// that is overwritten.
func (c *collector) space() []byte {
	left := c.limit - int64(len(c.data))
	if left <= 0 {
		if c.over == nil {
			c.over = make([]byte, copyBuffer)
		}
		return c.over
	}
	if free := cap(c.data) - len(c.data); free < leastRead {
		grown := make([]byte, len(c.data), max(2*cap(c.data), leastRead))
		copy(grown, c.data)
		c.data = grown
	}
	return c.data[len(c.data):min(int64(cap(c.data)), int64(len(c.data))+max(left, 1))]
}

// took records that n bytes were read into the space.
func (c *collector) took(n int) bool {
	if int64(len(c.data)) >= c.limit {
		c.dropped += int64(n)
	} else {
		c.data = c.data[:len(c.data)+n]
	}
	return true
}

// readOnce reads what is available and reports whether more may come.
func (c *collector) readOnce(fd int) bool {
	n, err := unix.Read(fd, c.space())
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		return true
	}
	if n <= 0 {
		return false
	}
	c.took(n)
	return true
}

// sink receives output.
type sink interface {
	space() []byte   // to read into; never empty
	took(n int) bool // n bytes were read; false if no more are wanted
}

// drain reads to EOF or, after hurry, only what is available.
func drain(o *output, to sink) {
	for {
		n, err := o.Read(to.space())
		wanted := to.took(n)
		if wanted && errors.Is(err, os.ErrDeadlineExceeded) {
			wanted = takeRest(o.f, to)
		}
		if !wanted {
			_ = o.Close() // so that the command notices
		}
		if !wanted || err != nil {
			return
		}
	}
}

// takeRest reads what the pipe holds when its command has exited. It reads no more than a pipe can
// hold, because a descendant may continue to write. It reports whether the sink wants more.
func takeRest(f *os.File, to sink) (wanted bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return true // the file is closed
	}
	wanted = true
	_ = raw.Control(func(fd uintptr) {
		for left := largePipe; left > 0; {
			n, err := unix.Read(int(fd), to.space())
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 {
				return
			}
			if wanted = to.took(n); !wanted {
				return // closing the file here would deadlock
			}
			left -= n
		}
	})
	return wanted
}
