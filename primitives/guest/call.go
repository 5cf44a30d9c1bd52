package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	// confirmTimeout is how long a cancelled operation waits for the guest to confirm its end,
	// so that nothing of the operation remains when the call returns.
	confirmTimeout = 5 * time.Second
	// byeTimeout is how long Close waits for the guest to end what this host started, in
	// addition to the longest grace period of a command.
	byeTimeout = 10 * time.Second
	// maxConfirm is the confirmTimeout of operations that must run to their end.
	maxConfirm = 10 * time.Minute
)

// call is the host's end of one operation.
type call struct {
	*framer
	c          *Sandbox
	ctx        context.Context //nolint:containedctx // a call lives exactly as long as the method call that it is part of
	op, target string
	confirm    time.Duration
	stop       func() bool
}

// start begins an operation: it opens a stream and sends the request. When ctx is done, the
// call half-closes the stream, which tells the guest to stop, and waits for the guest's answer
// for a limited time.
func (c *Sandbox) start(ctx context.Context, op, target string, code opcode, req message) (*call, error) {
	return c.begin(ctx, callParams{op: op, target: target, request: requestFrame(code, req)})
}

// callParams holds the parameters of begin.
type callParams struct {
	op, target string
	request    []byte
	hold       bool          // send the request with the first data
	confirm    time.Duration // how long to wait for a cancelled guest; zero means confirmTimeout
	always     bool          // begin even if the context is done
	files      []*os.File    // go with the request; begin takes ownership
}

// begin is start with all parameters.
func (c *Sandbox) begin(ctx context.Context, b callParams) (*call, error) {
	openCtx := ctx
	if b.always {
		openCtx = context.WithoutCancel(ctx)
	}
	f, err := c.open(openCtx, b)
	if err != nil {
		return nil, c.fail(b.op, b.target, err)
	}
	if b.confirm == 0 {
		b.confirm = confirmTimeout
	}
	k := &call{framer: f, c: c, ctx: ctx, op: b.op, target: b.target, confirm: b.confirm}
	k.stop = context.AfterFunc(ctx, k.abandon)
	return k, nil
}

// open opens a stream and writes the request.
func (c *Sandbox) open(ctx context.Context, b callParams) (*framer, error) {
	if err := c.mayOpen(ctx, b.request); err != nil {
		closeAll(b.files)
		return nil, err
	}
	if ctx.Done() == nil {
		return c.openNow(b.request, b.hold, b.files...)
	}
	// If the connection is stuck, even opening a stream blocks, until keep-alive ends it.
	type opened struct {
		f   *framer
		err error
	}
	result := make(chan opened, 1)
	go func() {
		f, err := c.openNow(b.request, b.hold, b.files...)
		result <- opened{f, err}
	}()
	select {
	case o := <-result:
		return o.f, o.err
	case <-ctx.Done():
		go func() {
			if o := <-result; o.err == nil {
				_ = o.f.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// mayOpen returns why no operation can begin, or nil.
func (c *Sandbox) mayOpen(ctx context.Context, request []byte) error {
	if err := c.Err(); err != nil {
		return err
	}
	switch {
	case c.isPaused():
		return errPaused
	case ctx.Err() != nil:
		return ctx.Err()
	case len(request) > maxRequest:
		return fmt.Errorf("%w: the request is larger than %d bytes", primitives.ErrLimit, maxRequest)
	case c.mux.NumStreams() >= maxStreams:
		return fmt.Errorf("%w: %d operations and streams are open at once; close processes and readers that are done", primitives.ErrLimit, maxStreams)
	}
	return nil
}

// openNow opens a stream and writes first. It takes ownership of files, which go with the first
// frame.
func (c *Sandbox) openNow(first []byte, hold bool, files ...*os.File) (*framer, error) {
	s, err := c.mux.OpenStream()
	if err != nil {
		closeAll(files)
		return nil, c.broken(err)
	}
	f := c.mux.framer(s)
	if hold {
		f.queue(first)
		return f, nil
	}
	if len(files) > 0 {
		err = c.mux.keep(s.StreamID(), files)
	}
	if err == nil {
		err = f.send(first)
	}
	if err != nil {
		_ = f.Close()
		return nil, c.broken(err)
	}
	return f, nil
}

// abandon tells the guest that the caller no longer waits for the result.
func (k *call) abandon() {
	_ = k.SetReadDeadline(time.Now().Add(k.confirm))
	_ = k.SetWriteDeadline(time.Now())
	_ = k.halfClose()
}

// end releases the stream. If the operation still runs, this tells the guest to stop.
func (k *call) end() {
	k.stop()
	_ = k.Close()
}

// failed returns the caller's error for a failed stream or a malformed frame.
func (k *call) failed(err error) error {
	if ctxErr := k.ctx.Err(); ctxErr != nil && !errors.Is(err, errProtocol) {
		return k.c.fail(k.op, k.target, ctxErr)
	}
	if errors.Is(err, yamux.ErrTimeout) {
		err = errEnded
	}
	return k.c.fail(k.op, k.target, k.c.broken(err))
}

// answered returns the error that an error frame holds.
func (k *call) answered(payload []byte) error {
	var w wireError
	if err := decode(payload, &w); err != nil {
		return k.failed(fmt.Errorf("%w: %w", errProtocol, err))
	}
	return k.c.fail(k.op, k.target, k.c.remote(&w))
}

// reply decodes the answer into m.
func (k *call) reply(m message) error {
	kind, payload, err := k.readMessage(maxReply)
	switch {
	case err != nil:
		return k.failed(err)
	case kind == frameError:
		return k.answered(payload)
	case kind != frameReply:
		return k.failed(unexpected(kind))
	}
	if err := decode(payload, m); err != nil {
		return k.failed(fmt.Errorf("%w: %w", errProtocol, err))
	}
	return nil
}

// ask performs an operation of one request and one reply.
func (c *Sandbox) ask(ctx context.Context, op, target string, code opcode, req, reply message) error {
	k, err := c.start(ctx, op, target, code, req)
	if err != nil {
		return err
	}
	defer k.end()
	return k.reply(reply)
}

func unexpected(kind byte) error {
	return fmt.Errorf("%w: a frame of kind %d is out of place", errProtocol, kind)
}

// sayBye asks the guest to end everything that this host started, and waits for its answer.
func (c *Sandbox) sayBye() {
	if c.mux.NumStreams() == 0 {
		return
	}
	// Closing the session unblocks this call if the guest does not answer.
	c.mu.Lock()
	patience := byeTimeout + c.grace
	c.mu.Unlock()
	timer := time.AfterFunc(patience, func() { _ = c.mux.Close() })
	defer timer.Stop()
	f, err := c.openNow(requestFrame(opBye, &empty{}), false)
	if err == nil {
		_, _, err = f.readMessage(maxReply)
		_ = f.Close()
	}
	if err != nil {
		c.log.Debug("the guest did not confirm the end", "error", err)
	}
}
