package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// register makes a process known to the streams that attach to it.
func (s *server) register(token uint64, a attachable) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.procs[token]; taken {
		return invalid(fmt.Errorf("%w: process %d exists", errProtocol, token))
	}
	s.procs[token] = a
	return nil
}

func (s *server) unregister(token uint64) {
	s.mu.Lock()
	delete(s.procs, token)
	s.mu.Unlock()
}

func (s *server) attach(ctx context.Context, op *operation) error {
	var req attachRequest
	if err := op.request(&req); err != nil {
		return err
	}
	s.mu.Lock()
	target, ok := s.procs[req.Token]
	s.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: the process has been closed", fs.ErrClosed)
	}
	target.attach(op.framer, req.Channel)
	return nil
}

func (s *server) exec(ctx context.Context, op *operation) error {
	var req execRequest
	if err := op.request(&req); err != nil {
		return err
	}
	proc, err := s.start(ctx, op, &req)
	if err != nil {
		return err
	}
	return s.serveProcess(ctx, op, req.Token, proc)
}

// outputExecer is a sandbox that can start a command whose output goes to files. Its process
// has no Stdout and Stderr. The caller keeps the ownership of the files.
type outputExecer interface {
	ExecOutput(ctx context.Context, cmd primitives.Command, stdout, stderr *os.File) (primitives.Process, error)
}

// start starts a command.
func (s *server) start(ctx context.Context, op *operation, req *execRequest) (primitives.Process, error) {
	if !req.Pipes {
		return s.p.Exec(ctx, req.Cmd)
	}
	files := op.session.claim(op.StreamID())
	defer closeAll(files)
	engine, ok := s.p.(outputExecer)
	switch {
	case !ok:
		return nil, errors.ErrUnsupported
	case len(files) == 1 && req.Cmd.MergeStderr:
		return engine.ExecOutput(ctx, req.Cmd, files[0], files[0])
	case len(files) == 2 && !req.Cmd.MergeStderr:
		return engine.ExecOutput(ctx, req.Cmd, files[0], files[1])
	}
	return nil, invalid(fmt.Errorf("%w: %d pipes for a command", errProtocol, len(files)))
}

func (s *server) reattach(ctx context.Context, op *operation) error {
	var req reattachRequest
	if err := op.request(&req); err != nil {
		return err
	}
	proc, err := primitives.Reattach(ctx, s.p, req.ID, req.From)
	if err != nil {
		return err
	}
	return s.serveProcess(ctx, op, req.Token, proc)
}

// served is a process and the streams that are attached to it.
type served struct {
	op       *operation
	proc     primitives.Process
	attached sync.WaitGroup
	reported chan struct{} // closed when the exit report has been sent

	mu      sync.Mutex
	taken   [3]bool // attached channels
	streams []*framer
	done    bool // nothing may attach any more
}

// serveProcess serves a process until the host closes it or disconnects.
func (s *server) serveProcess(ctx context.Context, op *operation, token uint64, proc primitives.Process) error {
	p := &served{op: op, proc: proc, reported: make(chan struct{})}
	if err := s.register(token, p); err != nil {
		return errors.Join(err, proc.Close())
	}
	defer s.unregister(token)
	_ = op.sendMessage(frameReply, &startedReply{proc.ID()})

	waitCtx, stopWaiting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWaiting()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		defer close(p.reported)
		report := &exitReport{}
		status, err := proc.Wait(waitCtx)
		if report.Status = status; err != nil {
			report.Err = toWire(err)
		}
		_ = op.sendMessage(frameExit, report)
	})
	asked := p.control(ctx)
	closeErr := proc.Close()
	// Close has ended the command, so waiting does not cut off its status.
	waiting.Wait()
	p.finish()
	if asked {
		reply := &controlReply{}
		if closeErr != nil {
			reply.Err = toWire(closeErr)
		}
		_ = op.sendMessage(frameClose, reply)
	}
	return nil
}

// control handles requests of the host until the host asks to close the process. It reports
// whether the host did.
func (p *served) control(ctx context.Context) (asked bool) {
	for {
		kind, payload, err := p.op.readMessage(maxReply)
		if err != nil {
			return false
		}
		var req controlRequest
		if err := decode(payload, &req); err != nil {
			return false
		}
		switch kind {
		case frameClose:
			return true
		case frameCancel:
			p.op.cancel()
		case frameSignal:
			p.answer(req.Seq, p.proc.Signal(ctx, req.Signal))
		case frameResize:
			p.answer(req.Seq, p.proc.Resize(ctx, req.Size))
		case frameCloseOutput:
			p.closeOutput(req.Output)
		case frameSync:
			p.answer(req.Seq, nil)
		default:
			return false
		}
	}
}

func (p *served) answer(seq uint64, err error) {
	reply := &controlReply{Seq: seq}
	if err != nil {
		reply.Err = toWire(err)
	}
	_ = p.op.sendMessage(frameReply, reply)
}

// take reserves a channel for one stream.
func (p *served) take(f *framer, ch channel) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.done:
		return fmt.Errorf("%w: the process has been closed", fs.ErrClosed)
	case int(ch) >= len(p.taken):
		return invalid(fmt.Errorf("%w: no stream %d", errProtocol, ch))
	case p.taken[ch]:
		return invalid(fmt.Errorf("%w: stream %d is attached already", errProtocol, ch))
	}
	p.taken[ch] = true
	p.streams = append(p.streams, f)
	p.attached.Add(1)
	return nil
}

// finish refuses new streams and waits for the attached ones.
func (p *served) finish() {
	p.mu.Lock()
	p.done = true
	for _, f := range p.streams {
		_ = f.SetReadDeadline(time.Now())
		_ = f.SetWriteDeadline(time.Now())
	}
	p.mu.Unlock()
	p.attached.Wait()
}

func (p *served) closeOutput(ch channel) {
	if ch == chanStdout || ch == chanStderr {
		_ = p.outputOf(ch).Close()
	}
}

func (p *served) outputOf(ch channel) io.ReadCloser {
	if ch == chanStderr {
		return p.proc.Stderr()
	}
	return p.proc.Stdout()
}

// attach serves a stream of the process to its end.
func (p *served) attach(f *framer, ch channel) {
	if err := p.take(f, ch); err != nil {
		_ = f.sendError(err)
		return
	}
	defer p.attached.Done()
	if ch == chanStdin {
		feedInput(f, p.proc.Stdin())
		return
	}
	src := p.outputOf(ch)
	var listening sync.WaitGroup
	var ended atomic.Bool // src has ended: closing a terminal would hang up on a command that only left it
	listening.Go(func() {
		// The host sends nothing here until it closes its end.
		_, _, _ = f.readHeader()
		if !ended.Load() {
			_ = src.Close()
		}
		_ = f.SetWriteDeadline(time.Now())
	})
	err := f.follow(src)
	ended.Store(true)
	if source, ok := errors.AsType[*sourceError](err); ok {
		_ = f.sendError(source.err)
	}
	_ = f.SetReadDeadline(time.Now())
	listening.Wait()
}

// feedInput writes the host's data to a command's standard input. It does not end input that is
// cut off: the host has disconnected, and the process ends with it.
func feedInput(f *framer, dst io.WriteCloser) {
	buf := make([]byte, 4<<10)
	for {
		kind, n, err := f.readHeader()
		if err != nil {
			return
		}
		switch {
		case kind == frameData:
			if n > len(buf) {
				buf = make([]byte, maxFrame)
			}
			if _, err := io.ReadFull(f.Stream, buf[:n]); err != nil {
				return
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				_ = f.sendError(err)
				return
			}
		case kind == frameSync && n == 0:
			_ = f.sendMessage(frameSync, &empty{})
		case kind == frameEnd && n == 0:
			if err := dst.Close(); err != nil {
				_ = f.sendError(err)
				return
			}
		default:
			_ = f.sendError(invalid(unexpected(kind)))
			return
		}
	}
}

// run runs a command to its end.
func (s *server) run(ctx context.Context, op *operation) error {
	var req runRequest
	if err := op.request(&req); err != nil {
		return err
	}
	opts := primitives.RunOptions{MaxOutput: req.MaxOutput}
	if req.Cmd.Stdin {
		r, w := io.Pipe()
		defer func() { _ = r.Close() }()
		feed := &runFeed{w: w}
		if err := s.register(req.Token, feed); err != nil {
			return err
		}
		defer s.unregister(req.Token)
		_ = op.reply(&empty{})
		opts.Stdin = r
	}
	return op.abandonable(func() error {
		res, err := primitives.Run(ctx, s.p, req.Cmd, opts)
		reply := &runReply{StdoutDropped: res.StdoutDropped, StderrDropped: res.StderrDropped, Status: res.Status}
		if err != nil {
			reply.Err = toWire(err)
		}
		frames := appendMessages(nil, frameStdout, res.Stdout)
		frames = appendMessages(frames, frameStderr, res.Stderr)
		_ = op.send(appendFrame(frames, frameReply, encode(reply)))
		return nil
	})
}

// appendMessages appends bytes as messages of one frame each.
func appendMessages(dst []byte, kind byte, b []byte) []byte {
	for len(b) > 0 {
		n := min(len(b), maxFrame)
		dst = appendFrame(dst, kind, b[:n])
		b = b[n:]
	}
	return dst
}

// runFeed is the standard input of Run.
type runFeed struct {
	w    *io.PipeWriter
	once sync.Mutex // held by the stream that feeds
}

func (r *runFeed) attach(f *framer, ch channel) {
	if ch != chanStdin || !r.once.TryLock() {
		_ = f.sendError(invalid(fmt.Errorf("%w: stream %d cannot be attached", errProtocol, ch)))
		return
	}
	feedInput(f, r.w)
}
