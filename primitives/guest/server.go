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
	// Logger logs the events of the stream. Nil disables logging.
	Logger hclog.Logger
	// HandshakeTimeout bounds the handshake; zero means
	// DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// KeepAlive is as in Config: a host that is silent for longer is treated as dead, and its
	// commands are ended.
	KeepAlive time.Duration
	// StayOnStream refuses the socket that a host offers: a host that is not of this machine must not make the guest connect to
	// a socket of its choice.
	StayOnStream bool
	// Work is called when an operation begins, and often while much data arrives. much reports
	// whether there is work for more than one processor: several operations, a tree of files,
	// or much data to write to files. Several goroutines call Work, and the operation waits for
	// it. Work may be nil.
	Work func(much bool)
}

// Serve serves p to the host at the other end of rw until the host closes the stream, the
// stream breaks or ctx is done. Closing rw must unblock its readers and writers; Serve closes
// it. If the host offers a Unix socket that the guest can reach, Serve uses the socket instead
// of rw.
//
// When Serve returns, everything that this host started has ended: operations are cancelled,
// and commands that are not durable are ended with their grace period. Serve does not close p.
//
// The error is nil if the stream ended, for whatever reason; a [*HandshakeError] if there was
// no host; the context's error if ctx is done; otherwise it says what was wrong with the host's
// data.
func Serve(ctx context.Context, rw io.ReadWriteCloser, p primitives.EnvironmentPrimitive, cfg ServeConfig) error {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	ours := &hello{ID: p.ID(), Paths: p.Paths(), Capabilities: p.Capabilities()}
	_, pipes := p.(outputExecer)
	agreed, err := handshake(ctx, rw, ours, false, cfg.HandshakeTimeout, func(ctx context.Context, _ *bufio.Reader, a *handshakeResult) error {
		return move(ctx, a, pipes && canPass, cfg.StayOnStream)
	})
	if err != nil {
		return err
	}
	return serve(ctx, agreed, p, cfg)
}

// serve serves p to the host after a handshake.
func serve(ctx context.Context, agreed *handshakeResult, p primitives.EnvironmentPrimitive, cfg ServeConfig) error {
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
	ending func() error            // returns an error once cancel was called
	ops    sync.WaitGroup

	mu      sync.Mutex
	live    int // operations in progress
	crowded int // grows with operations that overlap others, otherwise falls
	idle    chan struct{}
	procs   map[uint64]attachable
	offers  offers
}

// attachable is what streams of a process attach to.
type attachable interface {
	attach(f *framer, ch channel)
}

// accept serves streams until the session ends.
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

// requestTimeout is how long a host may take to send the request after it opened a stream.
const requestTimeout = 30 * time.Second

// operation is the guest's end of one operation. Its context is done when the host has
// abandoned the operation or disconnected.
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
	// When the server ends, nothing may wait for the host any more.
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

// errBye is the cause of cancelled operations when the host has disconnected or is about to.
var errBye = errors.New("the host goes")

func invalid(err error) error { return fmt.Errorf("%w: %w", fs.ErrInvalid, err) }

// dispatch handles a request. It returns an error to answer with, or nil if it has sent the
// answer.
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
	_ = op.sendMessage(frameReply, m) // a host that has disconnected needs no answer
	return nil
}

// abandonable runs do. It cancels the operation if the host sends anything more or closes its
// end: the host must only listen now.
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

// begin counts an operation and reports to Work how much there is to do. Two operations at once
// are much work only if they often overlap: one of them may be answered and about to end.
func (s *server) begin(code opcode) {
	s.mu.Lock()
	s.live++
	many := false
	switch {
	case code == opAttach: // it is part of another operation
	case s.live == 1:
		s.crowded = max(0, s.crowded-1)
	default:
		s.crowded = min(s.crowded+2, 2*oftenCrowded)
		many = s.live > 2 || s.crowded > oftenCrowded
	}
	s.mu.Unlock()
	s.work(many || code == opWatch) // a watch looks at a whole tree
}

// oftenCrowded is the value of crowded above which operations overlap often.
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

// reportTimeout is how long terminate waits for the exit reports of commands.
const reportTimeout = time.Second

// awaitReports waits until the host has been sent the exit status of its commands: the host may
// end the sandbox as soon as Terminate returns. It does not wait long for a running command.
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
