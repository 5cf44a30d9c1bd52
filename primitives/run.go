package primitives

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/internal/patience"
)

// RunOptions says what goes into a command and how much may come out of it. The
// zero value gives no input and keeps [DefaultMaxOutput] of each stream.
type RunOptions struct {
	// Stdin is the command's standard input; nil is an empty one.
	Stdin io.Reader
	// MaxOutput is how many bytes of standard output and of standard error to
	// keep each; the rest is read and counted. Zero means [DefaultMaxOutput].
	MaxOutput int64
}

// DefaultMaxOutput is how much of each stream Run keeps: 10 MiB.
const DefaultMaxOutput = 10 << 20

// drainDelay is how long Run reads on after the command has exited while
// processes that it left in the background still hold its output.
const drainDelay = 250 * time.Millisecond

// RunResult is what a finished command left. It is filled as far as known also
// when Run returns an error or the status says that the command was ended.
type RunResult struct {
	Stdout, Stderr []byte
	// StdoutDropped and StderrDropped count the bytes over the limit.
	StdoutDropped, StderrDropped int64
	Status                       ExitStatus
}

// Truncated reports whether output was dropped.
func (r RunResult) Truncated() bool { return r.StdoutDropped+r.StderrDropped > 0 }

// Runner is implemented by primitives that can run a command to its end in one
// step. Call [Run].
type Runner interface {
	// Run does what the function [Run] promises.
	Run(ctx context.Context, cmd Command, opts RunOptions) (RunResult, error)
}

// Run runs a command to its end and returns what it printed and how it ended. It
// returns when the command has exited and its output has ended; processes that
// the command left in the background and that still hold the output are given
// a moment and then no longer listened to.
//
// A non-zero status, a timeout and a cancelled context are no errors: look at
// the status. Errors are those of Exec, and what breaks the way to the sandbox.
// Command.Stdin is implied by opts.Stdin; Command.Durable and Command.TTY are
// fs.ErrInvalid.
func Run(ctx context.Context, p EnvironmentPrimitive, cmd Command, opts RunOptions) (RunResult, error) {
	if err := CheckRun(cmd); err != nil {
		return RunResult{}, &Error{Op: "run", Target: firstArg(cmd), Err: err}
	}
	if r, ok := p.(Runner); ok {
		return r.Run(ctx, cmd, opts)
	}
	cmd.Stdin = opts.Stdin != nil
	proc, err := p.Exec(ctx, cmd)
	if err != nil {
		return RunResult{}, err
	}
	return Collect(ctx, proc, opts)
}

// Collect takes a started process to its end the way [Run] does, and closes it.
// It is there for backends whose own Run is not one step.
func Collect(ctx context.Context, proc Process, opts RunOptions) (RunResult, error) {
	limit := opts.MaxOutput
	if limit == 0 {
		limit = DefaultMaxOutput
	}
	stdout, stderr := &boundedBuffer{limit: limit}, &boundedBuffer{limit: limit}
	var outErr, errErr error
	var drains, feed sync.WaitGroup
	drains.Go(func() { outErr = drain(stdout, proc.Stdout()) })
	drains.Go(func() { errErr = drain(stderr, proc.Stderr()) })
	if opts.Stdin != nil {
		feed.Go(func() {
			in := proc.Stdin()
			// A command may exit without reading its input: that is its
			// right, and its status tells the rest.
			_, _ = io.Copy(in, opts.Stdin)
			_ = in.Close()
		})
	}
	// The context ends the process by itself and Wait then says so; waiting is
	// not bounded by it so that the status is known.
	status, err := proc.Wait(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() { drains.Wait(); close(ended) }()
	patience.Wait(ended, drainDelay)
	closeErr := proc.Close() // also unblocks what still reads or writes
	<-ended
	// The feeder is not joined when its source blocks: the caller's reader is
	// the caller's to end.
	res := RunResult{
		Stdout: stdout.buf.Bytes(), Stderr: stderr.buf.Bytes(),
		StdoutDropped: stdout.dropped, StderrDropped: stderr.dropped,
		Status: status,
	}
	return res, errors.Join(err, streamErr(outErr), streamErr(errErr), closeErr)
}

// streamErr keeps the errors that mean lost output.
func streamErr(err error) error {
	if errors.Is(err, ErrUnavailable) || errors.Is(err, ErrTerminated) {
		return err
	}
	return nil
}

func drain(dst *boundedBuffer, src io.Reader) error {
	_, err := io.Copy(dst, src)
	return err
}

// boundedBuffer keeps the first limit bytes and counts the others.
type boundedBuffer struct {
	buf     bytes.Buffer
	limit   int64
	dropped int64
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	keep := min(int64(len(p)), b.limit-int64(b.buf.Len()))
	b.buf.Write(p[:keep])
	b.dropped += int64(len(p)) - keep
	return len(p), nil
}

// Reattacher is implemented by primitives with durable commands. Call
// [Reattach].
type Reattacher interface {
	// Reattach does what the function [Reattach] promises.
	Reattach(ctx context.Context, id string, from Offset) (Process, error)
}

// Reattach returns a durable command again, running or finished, by the ID of
// its Process, from this or another program. Its streams start at the given
// offsets and follow what is still printed, unless from.NoFollow is set; its exit
// status is the real one.
// Closing it lets go of it again. An unknown id is fs.ErrNotExist, an offset
// beyond what was printed fs.ErrInvalid, a sandbox without durable commands
// errors.ErrUnsupported.
func Reattach(ctx context.Context, p EnvironmentPrimitive, id string, from Offset) (Process, error) {
	if r, ok := p.(Reattacher); ok {
		return r.Reattach(ctx, id, from)
	}
	return nil, &Error{Op: "reattach", Target: id, Err: errors.ErrUnsupported}
}

// MissingCommands returns those of some commands that the sandbox does not have, with env
// added to the environment in which they are looked for.
func MissingCommands(ctx context.Context, p EnvironmentPrimitive, env []string, names ...string) (missing []string, err error) {
	for _, name := range names {
		// That it starts is enough.
		proc, err := p.Exec(ctx, Command{Args: []string{name, "--version"}, Env: env})
		switch {
		case errors.Is(err, ErrCommandNotFound):
			missing = append(missing, name)
			continue
		case err == nil:
			err = proc.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("look for %s in the sandbox: %w", name, err)
		}
	}
	return missing, nil
}
