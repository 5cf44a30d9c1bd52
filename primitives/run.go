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

// RunOptions configures [Run]: the input of the command and how much output to keep. The zero
// value gives no input and keeps [DefaultMaxOutput] of each stream.
type RunOptions struct {
	// Stdin is the command's standard input; nil is an empty one.
	Stdin io.Reader
	// MaxOutput is how many bytes of standard output and of standard error to
	// keep each; the rest is read and counted. Zero means [DefaultMaxOutput].
	MaxOutput int64
}

// DefaultMaxOutput is how much of each stream Run keeps: 10 MiB.
const DefaultMaxOutput = 10 << 20

// drainDelay is how long Run continues to read after the command has exited while background
// processes of the command still hold its output.
const drainDelay = 250 * time.Millisecond

// RunResult is the result of a finished command. It is filled in as far as known also when Run
// returns an error or the status says that the command was ended.
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

// Run runs a command to its end and returns its output and its exit status. It returns when the
// command has exited and its output has reached EOF. If background processes of the command
// still hold the output, Run reads on for a moment and then closes the streams.
//
// A non-zero status, a timeout and a cancelled context are not errors: check the status. Errors
// are those of Exec, and failures of the connection to the sandbox. opts.Stdin implies
// Command.Stdin; Command.Durable and Command.TTY return fs.ErrInvalid.
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

// Collect waits for a started process and returns its output, as [Run] does, and closes it. It
// is for backends whose own Run is not one step.
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
			// A command may exit without reading its input. This is not an error, and its
			// status says how it ended.
			_, _ = io.Copy(in, opts.Stdin)
			_ = in.Close()
		})
	}
	// Wait is not bounded by ctx, so that the status is known: when ctx is done, the process
	// ends and Wait returns its status.
	status, err := proc.Wait(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() { drains.Wait(); close(ended) }()
	patience.Wait(ended, drainDelay)
	closeErr := proc.Close() // also unblocks pending reads and writes
	<-ended
	// Do not join the feeder: its Read may block, and only the caller can unblock opts.Stdin.
	res := RunResult{
		Stdout: stdout.buf.Bytes(), Stderr: stderr.buf.Bytes(),
		StdoutDropped: stdout.dropped, StderrDropped: stderr.dropped,
		Status: status,
	}
	return res, errors.Join(err, streamErr(outErr), streamErr(errErr), closeErr)
}

// streamErr returns err if it means that output was lost, else nil.
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

// Reattach returns a durable command, running or finished, by the ID of its Process, from this
// or another program. Its streams start at the given offsets and follow new output unless
// from.NoFollow is set. Its exit status is the real one. Closing it detaches again.
//
// An unknown id returns fs.ErrNotExist, an offset beyond the output returns fs.ErrInvalid, a
// sandbox without durable commands returns errors.ErrUnsupported.
func Reattach(ctx context.Context, p EnvironmentPrimitive, id string, from Offset) (Process, error) {
	if r, ok := p.(Reattacher); ok {
		return r.Reattach(ctx, id, from)
	}
	return nil, &Error{Op: "reattach", Target: id, Err: errors.ErrUnsupported}
}

// MissingCommands returns the names of the commands that the sandbox does not have. It looks
// them up in the sandbox's environment with env added.
func MissingCommands(ctx context.Context, p EnvironmentPrimitive, env []string, names ...string) (missing []string, err error) {
	for _, name := range names {
		// A command that starts exists; its exit status does not matter.
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
