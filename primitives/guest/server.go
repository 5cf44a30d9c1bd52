package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"

	"github.com/agentenv-dev/agentenv/primitives"
)

// ServeConfig configures the guest's end. The zero value works.
type ServeConfig struct {
	// Logger gets what happens to the stream; nil is silence.
	Logger hclog.Logger
	// HandshakeTimeout bounds the handshake; zero means
	// DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// KeepAlive is as in Config: a host that is silent for longer is taken for
	// dead, and its commands are ended.
	KeepAlive time.Duration
	// Work is called when an operation begins, and often while much data arrives.
	// much reports work for more than one processor: several operations, a tree of
	// files, or much data to write to files. Several goroutines call Work, and the
	// operation waits for it. Nil is not called.
	Work func(much bool)
}

// Serve serves p to the host at the other end of rw until the host closes the
// stream, the stream breaks or ctx is done. Closing rw must unblock its readers
// and writers; Serve closes it. If the host offers a Unix socket that can be
// reached, that takes the place of rw.
//
// When Serve returns, everything that this host began has ended: operations are
// cancelled and commands that are not durable are ended by their ladder. p itself
// is not closed.
//
// The error is nil when the stream ended, however that came, a [*HandshakeError]
// when there was no host, the context's when ctx is done, and otherwise says what
// was wrong with what the host sent.
func Serve(ctx context.Context, rw io.ReadWriteCloser, p primitives.EnvironmentPrimitive, cfg ServeConfig) error {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	ours := &hello{ID: p.ID(), Paths: p.Paths(), Capabilities: p.Capabilities()}
	_, pipes := p.(outputExecer)
	agreed, err := handshake(ctx, rw, ours, false, cfg.HandshakeTimeout, func(ctx context.Context, _ *bufio.Reader, a *agreed) error {
		return move(ctx, a, pipes && canPass)
	})
	if err != nil {
		return err
	}
	return serve(ctx, agreed, p, cfg)
}

// serve serves p to the host of a handshake.
func serve(ctx context.Context, agreed *agreed, p primitives.EnvironmentPrimitive, cfg ServeConfig) error {
	if cfg.Work == nil {
		cfg.Work = func(bool) {}
	}
	agreed.work = cfg.Work
	mux, err := newSession(agreed, false, cfg.KeepAlive, cfg.Logger)
	if err != nil {
		return errors.Join(err, agreed.rw.Close())
	}
	opsCtx, cancel := context.WithCancelCause(ctx)
	s := &server{p: p, mux: mux, log: cfg.Logger, work: cfg.Work, cancel: cancel, ending: opsCtx.Err, procs: make(map[uint64]attachable), offers: offers{timeout: offerTimeout}}
	err = s.accept(ctx, opsCtx)
	_ = mux.Close()
	cancel(errBye)
	s.ops.Wait()
	return err
}

// server serves one host.
type server struct {
	p      primitives.EnvironmentPrimitive
	mux    *session
	log    hclog.Logger
	work   func(much bool)
	cancel context.CancelCauseFunc // of every operation
	ending func() error            // not nil as soon as cancel is called
	ops    sync.WaitGroup

	mu      sync.Mutex
	live    int // operations under way
	crowded int // grows with operations that begin beside others, and else falls
	idle    chan struct{}
	procs   map[uint64]attachable
	offers  offers
}

// attachable is what streams of a process attach to.
type attachable interface {
	attach(f *framer, ch channel)
}

// accept takes streams until there are no more.
func (s *server) accept(ctx, opsCtx context.Context) error {
	for {
		stream, err := s.mux.AcceptStreamWithContext(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, errLost), errors.Is(err, yamux.ErrSessionShutdown):
			s.log.Debug("the host has gone", "cause", err)
			return nil
		case err != nil:
			return fmt.Errorf("serve guest: %w", err)
		case s.mux.NumStreams() > hostileStreams:
			return fmt.Errorf("serve guest: %w: more than %d streams at once", errProtocol, hostileStreams)
		}
		s.ops.Go(func() { s.serve(opsCtx, s.mux.framer(stream)) })
	}
}

// requestTimeout is how long a host may take for the request after it opened a
// stream.
const requestTimeout = 30 * time.Second

// operation is the guest's end of one operation. Its context is done when the
// host has abandoned it or has gone.
type operation struct {
	*framer
	cancel context.CancelFunc // of its context
	body   []byte             // of the request
}

// serve handles one stream.
func (s *server) serve(opsCtx context.Context, f *framer) {
	defer func() { _ = f.Close() }()
	_ = f.SetReadDeadline(time.Now().Add(requestTimeout))
	kind, payload, err := f.readMessage(maxRequest)
	if err != nil {
		s.log.Debug("a stream without a request", "error", err)
		return
	}
	if kind != frameRequest || len(payload) == 0 {
		_ = f.sendError(invalid(unexpected(kind)))
		return
	}
	_ = f.SetReadDeadline(time.Time{})
	code := opcode(payload[0])
	if code == opBye {
		s.bye(f)
		return
	}
	s.begin(code)
	defer s.end()
	ctx, cancel := context.WithCancel(opsCtx)
	defer cancel()
	// When everything is to end, nothing waits for the host any more.
	stop := context.AfterFunc(opsCtx, func() {
		_ = f.SetReadDeadline(time.Now())
		_ = f.SetWriteDeadline(time.Now())
	})
	defer stop()
	op := &operation{framer: f, cancel: cancel, body: payload[1:]}
	if err := s.dispatch(ctx, op, code); err != nil {
		if cause := context.Cause(opsCtx); cause != nil && !errors.Is(cause, errBye) {
			err = fmt.Errorf("%w: the guest is ending", primitives.ErrUnavailable)
		}
		// A client that abandoned the operation may still wait for its end.
		_ = op.sendError(err)
	}
}

// errBye is why operations are cancelled when the host has gone or says that it goes.
var errBye = errors.New("the host goes")

func invalid(err error) error { return fmt.Errorf("%w: %w", fs.ErrInvalid, err) }

// dispatch handles a request. What it returns is the answer, unless it is nil:
// then the answer has been sent.
func (s *server) dispatch(ctx context.Context, op *operation, code opcode) error {
	switch code {
	case opPoll:
		return s.poll(ctx, op)
	case opTerminate:
		return s.terminate(ctx, op)
	case opExec:
		return s.exec(ctx, op)
	case opReattach:
		return s.reattach(ctx, op)
	case opAttach:
		return s.attach(ctx, op)
	case opRun:
		return s.run(ctx, op)
	case opOpen:
		return s.open(ctx, op)
	case opWrite:
		return s.write(ctx, op)
	case opWriteFiles:
		return s.writeFiles(ctx, op)
	case opStat:
		return s.stat(ctx, op)
	case opList:
		return s.list(ctx, op)
	case opMkdir:
		return s.mkdir(ctx, op)
	case opRemove:
		return s.remove(ctx, op)
	case opMove:
		return s.move(ctx, op)
	case opPack:
		return s.pack(ctx, op)
	case opUnpack:
		return s.unpack(ctx, op)
	case opWatch:
		return s.watch(ctx, op)
	case opIdentify:
		return s.identify(op)
	case opListen:
		return s.listen(ctx, op)
	case opAccept:
		return s.takeOffer(ctx, op)
	case opDial:
		return s.dial(ctx, op)
	default:
		return fmt.Errorf("%w: the guest does not know operation %d", errors.ErrUnsupported, code)
	}
}

// request decodes the request.
func (op *operation) request(m message) error {
	if err := decode(op.body, m); err != nil {
		return invalid(err)
	}
	return nil
}

func (op *operation) reply(m message) error {
	_ = op.sendMessage(frameReply, m) // a host that has gone needs no answer
	return nil
}

// abandonable runs do, and cancels the operation when the host sends anything
// more or closes its end: it must only listen now.
func (op *operation) abandonable(do func() error) error {
	var listening sync.WaitGroup
	listening.Go(func() {
		_, _, _ = op.readHeader()
		op.cancel()
	})
	err := do()
	_ = op.SetReadDeadline(time.Now())
	listening.Wait()
	return err
}

// begin counts an operation and tells how much there is to do. Two at once are much
// only if that is often so: one that has been answered may just be about to end.
func (s *server) begin(code opcode) {
	s.mu.Lock()
	s.live++
	many := false
	switch {
	case code == opAttach: // which is part of another
	case s.live == 1:
		s.crowded = max(0, s.crowded-1)
	default:
		s.crowded = min(s.crowded+2, 2*oftenCrowded)
		many = s.live > 2 || s.crowded > oftenCrowded
	}
	s.mu.Unlock()
	s.work(many || code == opWatch) // which looks at a whole tree
}

// oftenCrowded is from where on it is often that operations begin beside others.
const oftenCrowded = 32

func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live--
	if s.live == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// bye ends all operations and answers when they have ended.
func (s *server) bye(f *framer) {
	s.cancel(errBye)
	s.mu.Lock()
	idle := make(chan struct{})
	if s.idle != nil {
		idle = s.idle
	} else if s.live == 0 {
		close(idle)
	} else {
		s.idle = idle
	}
	s.mu.Unlock()
	select {
	case <-idle:
	case <-s.mux.CloseChan():
	}
	_ = f.sendMessage(frameReply, &empty{})
}

func (s *server) poll(ctx context.Context, op *operation) error {
	state, err := s.p.Poll(ctx)
	if err != nil {
		return err
	}
	return op.reply(&stateReply{state})
}

func (s *server) terminate(ctx context.Context, op *operation) error {
	return op.abandonable(func() error {
		report, err := s.p.Terminate(ctx)
		s.awaitReports()
		reply := &terminateReply{Report: report}
		if err != nil {
			reply.Err = toWire(err)
		}
		return op.reply(reply)
	})
}

// reportTimeout is how long terminate waits for what commands report.
const reportTimeout = time.Second

// awaitReports waits until the host has been sent how its commands ended: it may end the
// sandbox as soon as it knows that they have. One that has not ended is not waited for long.
func (s *server) awaitReports() {
	s.mu.Lock()
	procs := slices.Collect(maps.Values(s.procs))
	s.mu.Unlock()
	timeout := time.NewTimer(reportTimeout)
	defer timeout.Stop()
	for _, a := range procs {
		p, ok := a.(*served)
		if !ok {
			continue
		}
		select {
		case <-p.reported:
		case <-timeout.C:
			return
		case <-s.mux.CloseChan():
			return
		}
	}
}
