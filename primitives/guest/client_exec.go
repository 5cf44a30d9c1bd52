package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Exec starts a command.
func (c *Sandbox) Exec(ctx context.Context, cmd primitives.Command) (primitives.Process, error) {
	if err := cmd.Check(); err != nil {
		return nil, c.fail("exec", program(cmd), err)
	}
	c.keepGrace(cmd)
	st := startParams{op: "exec", target: program(cmd), token: c.tokens.Add(1), cmd: cmd}
	st.stdout, st.stderr, st.files = c.newPipes(cmd)
	st.request = requestFrame(opExec, &execRequest{st.token, cmd, st.files != nil})
	return c.process(ctx, st)
}

// Reattach returns a durable command by its ID.
func (c *Sandbox) Reattach(ctx context.Context, id string, from primitives.Offset) (primitives.Process, error) {
	token := c.tokens.Add(1)
	return c.process(ctx, startParams{
		op: "reattach", target: id, token: token, cmd: primitives.Command{Durable: true},
		request: requestFrame(opReattach, &reattachRequest{token, id, from}),
	})
}

// keepGrace records the longest grace period, for which Close may have to wait.
func (c *Sandbox) keepGrace(cmd primitives.Command) {
	c.mu.Lock()
	c.grace = max(c.grace, cmd.GracePeriod())
	c.mu.Unlock()
}

func program(cmd primitives.Command) string {
	if len(cmd.Args) == 0 {
		return ""
	}
	return cmd.Args[0]
}

// startParams is a command that is being started or attached to.
type startParams struct {
	op, target string
	token      uint64
	cmd        primitives.Command
	request    []byte
	// The host's ends of the output pipes, nil if the output comes over the stream.
	stdout, stderr *os.File
	files          []*os.File
}

func (c *Sandbox) process(ctx context.Context, s startParams) (primitives.Process, error) {
	patience := s.cmd.GracePeriod() + byeTimeout
	k, err := c.begin(ctx, callParams{op: s.op, target: s.target, request: s.request, confirm: patience, files: s.files})
	if err != nil {
		s.closePipes()
		return nil, err
	}
	var started startedReply
	err = k.reply(&started)
	if !k.stop() && err == nil {
		err = k.c.fail(s.op, s.target, ctx.Err()) // ctx was done while it started
	}
	if err != nil {
		k.end()
		s.closePipes()
		return nil, err
	}
	p := &process{
		c: c, f: k.framer, token: s.token, id: started.ID, target: s.target,
		patience: patience,
		exited:   make(chan struct{}), ended: make(chan struct{}),
		pending: make(map[uint64]chan error),
	}
	p.in = &input{p: p, enabled: s.cmd.Stdin || s.cmd.TTY != nil}
	p.out, p.err = p.streams(&s)
	go p.receive()
	p.stopContext = context.AfterFunc(ctx, p.cancel)
	return p, nil
}

// process is a started command. Its stream carries only control messages; the command's own
// streams are attached when they are first used.
type process struct {
	c        *Sandbox
	f        *framer
	token    uint64
	id       string
	target   string
	patience time.Duration // how long the guest may take to end it

	in          *input
	out, err    stream
	stopContext func() bool

	exited chan struct{} // closed when status or waitErr is known
	ended  chan struct{} // closed when the control stream has ended

	mu      sync.Mutex
	seq     uint64
	pending map[uint64]chan error
	status  primitives.ExitStatus
	waitErr error
	endErr  error // why the control stream ended
	closing sync.Once
	// closeErr is what Close returns.
	closeErr error
}

func (p *process) ID() string            { return p.id }
func (p *process) Stdin() io.WriteCloser { return p.in }
func (p *process) Stdout() io.ReadCloser { return p.out }
func (p *process) Stderr() io.ReadCloser { return p.err }

// endedWithSandbox is the status of a command whose sandbox another client has terminated
// before the guest could send the command's own status.
var endedWithSandbox = primitives.ExitStatus{Code: -1, Reason: primitives.ReasonCancelled}

// receive handles the guest's messages about the process until its end.
func (p *process) receive() {
	err := p.receiveAll()
	p.mu.Lock()
	p.endErr = err
	if !p.hasExited() {
		if errors.Is(err, primitives.ErrTerminated) {
			p.status = endedWithSandbox
		} else {
			p.waitErr = err
		}
		close(p.exited)
	}
	for seq, answer := range p.pending {
		delete(p.pending, seq)
		answer <- err
	}
	p.mu.Unlock()
	close(p.ended)
	p.out.cut()
	p.err.cut()
}

// errClosed ends receiveAll when the guest has confirmed Close.
var errClosed = errors.New("process was closed")

func (p *process) receiveAll() error {
	for {
		kind, payload, err := p.f.readMessage(maxReply)
		if err != nil {
			return p.c.broken(err)
		}
		switch kind {
		case frameExit:
			var r exitReport
			if err := p.decode(payload, &r); err != nil {
				return err
			}
			p.setExit(&r)
		case frameReply:
			var r controlReply
			if err := p.decode(payload, &r); err != nil {
				return err
			}
			p.answer(&r)
		case frameClose:
			var r controlReply
			if err := p.decode(payload, &r); err != nil {
				return err
			}
			if r.Err != nil {
				p.closeErr = p.c.fail("close", p.target, p.c.remote(r.Err))
			}
			return errClosed
		default:
			return p.c.broken(unexpected(kind))
		}
	}
}

func (p *process) decode(payload []byte, m message) error {
	if err := decode(payload, m); err != nil {
		return p.c.broken(fmt.Errorf("%w: %w", errProtocol, err))
	}
	return nil
}

func (p *process) setExit(r *exitReport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hasExited() {
		return
	}
	p.status = r.Status
	if r.Err != nil {
		p.waitErr = p.c.fail("wait", p.target, p.c.remote(r.Err))
	}
	close(p.exited)
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

func (p *process) answer(r *controlReply) {
	p.mu.Lock()
	answer, ok := p.pending[r.Seq]
	delete(p.pending, r.Seq)
	p.mu.Unlock()
	if !ok {
		return
	}
	var err error
	if r.Err != nil {
		err = p.c.remote(r.Err)
	}
	answer <- err
}

// control sends a request about the process and waits for the answer.
func (p *process) control(ctx context.Context, kind byte, r *controlRequest) error {
	if p.c.isPaused() {
		return errPaused
	}
	answer := make(chan error, 1)
	var err error
	if r.Seq, err = p.expect(answer); err != nil {
		return err
	}
	if err := p.f.sendMessage(kind, r); err != nil {
		return p.c.broken(err)
	}
	timer := time.NewTimer(p.patience)
	defer timer.Stop()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return fmt.Errorf("%w: the guest does not answer", primitives.ErrUnavailable)
	}
}

// expect registers a channel for the guest's answer to the next request.
func (p *process) expect(answer chan error) (seq uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endErr != nil {
		return 0, p.endErr
	}
	p.seq++
	p.pending[p.seq] = answer
	return p.seq, nil
}

// Signal sends a signal to the process group.
func (p *process) Signal(ctx context.Context, sig primitives.Signal) error {
	if err := p.usable(); err != nil {
		return p.c.fail("signal", p.target, err)
	}
	if err := p.control(ctx, frameSignal, &controlRequest{Signal: sig}); err != nil {
		return p.c.fail("signal", p.target, err)
	}
	return nil
}

// usable returns os.ErrProcessDone after Close of the process.
func (p *process) usable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(p.endErr, errClosed) {
		return os.ErrProcessDone
	}
	return nil
}

// Resize changes the terminal's size.
func (p *process) Resize(ctx context.Context, size primitives.TerminalSize) error {
	if err := p.usable(); err != nil {
		return p.c.fail("resize", p.target, err)
	}
	if err := p.control(ctx, frameResize, &controlRequest{Size: size}); err != nil {
		return p.c.fail("resize", p.target, err)
	}
	return nil
}

// Wait waits for the command to exit.
func (p *process) Wait(ctx context.Context) (primitives.ExitStatus, error) {
	select {
	case <-p.exited:
	default:
		select {
		case <-p.exited:
		case <-ctx.Done():
			return primitives.ExitStatus{}, p.c.fail("wait", p.target, ctx.Err())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waitErr != nil {
		return p.status, p.c.fail("wait", p.target, p.waitErr)
	}
	return p.status, nil
}

// cancel tells the guest that the process's context is done. A guest that does not end the
// process in time is treated as dead.
func (p *process) cancel() {
	if err := p.f.sendMessage(frameCancel, &controlRequest{}); err != nil {
		return
	}
	timer := time.NewTimer(p.patience)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-p.ended:
	case <-timer.C:
		p.giveUp()
	}
}

// giveUp unblocks receive.
func (p *process) giveUp() { _ = p.f.SetReadDeadline(time.Now()) }

// Close ends the command and returns when that is done.
func (p *process) Close() error {
	p.closing.Do(func() {
		p.stopContext()
		timer := time.AfterFunc(p.patience, p.giveUp)
		if err := p.f.sendMessage(frameClose, &controlRequest{}); err != nil {
			p.giveUp()
		}
		<-p.ended
		timer.Stop()
		p.in.release()
		p.out.release()
		p.err.release()
		_ = p.f.Close()
	})
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closeErr != nil:
		return p.closeErr
	case errors.Is(p.endErr, errClosed), p.c.isClosed(), errors.Is(p.endErr, primitives.ErrTerminated),
		errors.Is(p.endErr, os.ErrProcessDone):
		return nil // the process has ended
	}
	return p.c.fail("close", p.target, p.endErr)
}

// Run runs a command to its end in one round trip. The guest keeps output over the limit to
// itself.
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
	k, err := c.begin(ctx, callParams{
		op: "run", target: program(cmd), request: requestFrame(opRun, req),
		// Cancelling ends the command; wait for its status.
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

// feed sends standard input in a goroutine. Nothing waits for that goroutine while the caller's
// reader blocks, because only the caller can end the reader.
func (k *call) feed(token uint64, opts primitives.RunOptions) (*feeder, error) {
	f, err := k.c.openNow(requestFrame(opAttach, &attachRequest{token, chanStdin}), true)
	if err != nil {
		return nil, k.failed(err)
	}
	go func() {
		// A command may exit without reading its input. If the input fails, end it, as with an
		// ordinary pipe.
		if err := f.follow(opts.Stdin); err != nil {
			if _, ok := errors.AsType[*sourceError](err); ok {
				_ = f.send(appendHeader(nil, frameEnd, 0))
			}
		}
	}()
	return &feeder{f}, nil
}

// feeder is the stream of the standard input of Run.
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
