package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Run runs a command to its end in one round trip. Output over the limit stays
// with the guest.
func (c *Sandbox) Run(ctx context.Context, cmd primitives.Command, opts primitives.RunOptions) (primitives.RunResult, error) {
	if err := primitives.CheckRun(cmd); err != nil {
		return primitives.RunResult{}, c.fail("run", program(cmd), err)
	}
	if opts.MaxOutput == 0 {
		opts.MaxOutput = primitives.DefaultMaxOutput
	}
	cmd.Stdin = opts.Stdin != nil
	c.keepGrace(cmd)
	req := &runRequest{Token: c.tokens.Add(1), Cmd: cmd, MaxOutput: opts.MaxOutput}
	k, err := c.begin(ctx, beginning{
		op: "run", target: program(cmd), request: requestFrame(opRun, req),
		// Cancelling ends the command, and its status is still wanted.
		confirm: cmd.GracePeriod() + byeTimeout,
	})
	if err != nil {
		return primitives.RunResult{}, err
	}
	defer k.end()
	if cmd.Stdin {
		if err := k.reply(&empty{}); err != nil {
			return primitives.RunResult{}, err
		}
		feed, err := k.feed(req.Token, opts)
		if err != nil {
			return primitives.RunResult{}, err
		}
		defer feed.release()
	}
	return k.collect(opts.MaxOutput)
}

// feed sends standard input in a goroutine that is not waited for while the
// caller's reader blocks: it is the caller's to end.
func (k *call) feed(token uint64, opts primitives.RunOptions) (*feeder, error) {
	f, err := k.c.openNow(requestFrame(opAttach, &attachRequest{token, chanStdin}), true)
	if err != nil {
		return nil, k.failed(err)
	}
	go func() {
		// A command may exit without reading its input: that is its right.
		// An input that fails ends, as with an ordinary pipe.
		if err := f.follow(opts.Stdin); err != nil {
			if _, ok := errors.AsType[*sourceError](err); ok {
				_ = f.send(appendHeader(nil, frameEnd, 0))
			}
		}
	}()
	return &feeder{f}, nil
}

// feeder is the stream of a run's standard input.
type feeder struct{ f *framer }

func (f *feeder) release() {
	_ = f.f.SetWriteDeadline(time.Now())
	_ = f.f.Close()
}

// collect reads the output and the result of a run.
func (k *call) collect(limit int64) (primitives.RunResult, error) {
	var res primitives.RunResult
	for {
		kind, payload, err := k.readMessage(maxReply)
		switch {
		case err != nil:
			if err = k.failed(err); errors.Is(err, primitives.ErrTerminated) {
				res.Status, err = endedWithSandbox, nil
			}
			return res, err
		case kind == frameError:
			return res, k.answered(payload)
		case kind == frameStdout && int64(len(res.Stdout)+len(payload)) <= limit:
			res.Stdout = append(res.Stdout, payload...)
		case kind == frameStderr && int64(len(res.Stderr)+len(payload)) <= limit:
			res.Stderr = append(res.Stderr, payload...)
		case kind == frameReply:
			return k.result(res, payload)
		default:
			return res, k.failed(unexpected(kind))
		}
	}
}

func (k *call) result(res primitives.RunResult, payload []byte) (primitives.RunResult, error) {
	var reply runReply
	if err := decode(payload, &reply); err != nil {
		return res, k.failed(fmt.Errorf("%w: %w", errProtocol, err))
	}
	res.StdoutDropped, res.StderrDropped = reply.StdoutDropped, reply.StderrDropped
	res.Status = reply.Status
	if reply.Err != nil {
		return res, k.c.fail(k.op, k.target, k.c.remote(reply.Err))
	}
	return res, nil
}
