package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/executor"
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	defaultStartTimeout = 30 * time.Second
	shutdownTime        = 5 * time.Second // for an executor to end after shutdown
)

// PoolConfig configures a [Pool].
type PoolConfig struct {
	// Service answers the executors. It must not be nil.
	Service *Service
	// Sandbox runs the executors. It must be one of this machine that is not isolated from it, such as
	// one of primitives/local. An executor in another sandbox uses [Service.ServeHTTP].
	Sandbox primitives.EnvironmentPrimitive
	// Users maps the users of [Spec] to users of the system.
	Users map[string]string
	// StartTimeout is how long an executor may take to connect; zero means 30 s.
	StartTimeout time.Duration
}

// Pool is a set of executors. Its methods may be called from several goroutines.
type Pool struct {
	cfg      PoolConfig
	life     context.Context //nolint:containedctx // until Close, which ends the starts
	stop     context.CancelFunc
	starting sync.WaitGroup
	ending   sync.WaitGroup // of executors, also of those that end by themselves

	mu     sync.Mutex
	all    map[*Process]struct{}
	closed bool
}

// NewPool returns an empty pool. The error is errors.ErrUnsupported for a sandbox that does not share
// its sockets with this machine.
func NewPool(cfg PoolConfig) (*Pool, error) {
	if isolation := cfg.Sandbox.Capabilities().Isolation; isolation != primitives.IsolationNone {
		return nil, fmt.Errorf("pool of executors: %w: the isolation of the sandbox is %q, so its executors cannot reach a socket of this machine; let them use the HTTP endpoint",
			errors.ErrUnsupported, isolation)
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = defaultStartTimeout
	}
	p := &Pool{cfg: cfg, all: map[*Process]struct{}{}}
	p.life, p.stop = context.WithCancel(context.Background()) //nolint:forbidigo // Close ends it
	return p, nil
}

// Spec says what to start.
type Spec struct {
	// Command is the program and its arguments. It connects to the socket in [executor.EnvSocket].
	Command []string
	Dir     string   // the working directory; empty means the workspace of the sandbox
	Env     []string // in addition to that of the sandbox
	// Grant is what its token is for. Grant.Session must not be empty; its token is revoked when the
	// executor has ended.
	Grant Grant
	// User runs the executor as the user of the system that PoolConfig.Users maps it to. A user that
	// is not mapped is [ErrUser]. Empty means the user of this program.
	User string
}

// Process is a running executor.
type Process struct {
	*Conn
	// Token is the token of the executor's session. It is in the executor's environment too.
	Token string

	pool    *Pool
	session string
	process primitives.Process
	stop    context.CancelFunc // ends the process tree
	dir     string             // of the socket
	stderr  *tail.Buffer
	reading sync.WaitGroup
	end     func() error
}

// Spawn starts an executor and waits until it is connected. ctx is for the start only. Errors are
// [ErrUser], those of primitives for the command, and [ErrClosed] for an executor that ends before it
// connects. One that does not connect in time is context.DeadlineExceeded. Both come with what the
// executor has said.
func (p *Pool) Spawn(ctx context.Context, spec Spec) (_ *Process, err error) {
	if spec.Grant.Session == "" {
		return nil, errors.New("start an executor: give Grant.Session")
	}
	as, err := findAccount(p.cfg.Users, spec.User, ownAccount())
	if err != nil {
		return nil, fmt.Errorf("start an executor: %w", err)
	}
	if !p.begin() {
		return nil, fmt.Errorf("start an executor: the pool: %w", ErrClosed)
	}
	defer p.starting.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)() //nolint:contextcheck // the end of the pool cancels, too
	e := &Process{pool: p, session: spec.Grant.Session, stderr: &tail.Buffer{Max: 16 << 10}}
	e.end = sync.OnceValue(e.terminate)
	defer func() {
		if err != nil {
			err = fmt.Errorf("start an executor: %w", errors.Join(err, e.end()))
		}
	}()
	listener, err := e.listen(as)
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }() // its socket is for one executor
	e.Token = p.cfg.Service.Tokens.Issue(spec.Grant)
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	e.stop = stop
	env := slices.Concat(spec.Env, []string{executor.EnvSocket + "=" + listener.Addr().String(), executor.EnvToken + "=" + e.Token, "AGENT_SESSION_ID=" + e.session})
	e.process, err = p.cfg.Sandbox.Exec(life, primitives.Command{Args: spec.Command, Dir: spec.Dir, Env: env, User: as.name})
	if err != nil {
		return nil, err
	}
	e.reading.Go(func() { _, _ = io.Copy(io.Discard, e.process.Stdout()) })
	e.reading.Go(func() { _, _ = io.Copy(e.stderr, e.process.Stderr()) })
	conn, err := e.accept(ctx, listener, as)
	if err != nil {
		return nil, err
	}
	e.Conn = NewConn(ctx, conn, p.cfg.Service.Handler(e.session))
	if !p.add(e) {
		return nil, ErrClosed
	}
	p.ending.Go(func() {
		<-e.Done()
		_ = e.end() // Close returns its error
	})
	return e, nil
}

// begin counts a start, which Close waits for, unless the pool is closed.
func (p *Pool) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.starting.Add(1)
	}
	return !p.closed
}

// add adds an executor unless the pool is closed.
func (p *Pool) add(e *Process) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.all[e] = struct{}{}
	return true
}

// listen listens on a socket in a folder of its own, which only the executor's user can enter.
func (e *Process) listen(as account) (l *net.UnixListener, err error) {
	if e.dir, err = os.MkdirTemp("", "agentenv-rpc-"); err != nil { // with the mode 0700
		return nil, err
	}
	name := filepath.Join(e.dir, "s")
	if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"}); err != nil {
		return nil, err
	}
	err = os.Chmod(name, 0o600)
	if as.name != "" && err == nil {
		err = errors.Join(os.Chown(name, as.uid, as.gid), os.Chown(e.dir, as.uid, as.gid))
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// accept waits for the executor. It refuses processes of other users, such as root's.
func (e *Process) accept(ctx context.Context, l *net.UnixListener, as account) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, e.pool.cfg.StartTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = e.process.Wait(ctx) // an executor that ends does not connect
		_ = l.Close()
	}()
	defer func() { cancel(); <-ended }()
	for {
		c, err := l.AcceptUnix()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, fmt.Errorf("it has not connected to its socket: %w; standard error ends with: %s", context.Cause(ctx), tail.Of(e.stderr.String()))
		case err != nil:
			status, werr := e.process.Wait(ctx)
			e.reading.Wait()
			return nil, fmt.Errorf("it ended before it connected: %s: %w; standard error ends with: %s", status, errors.Join(ErrClosed, werr), tail.Of(e.stderr.String()))
		}
		uid, err := peerUID(c)
		if err == nil && uid == uint32(as.uid) { //nolint:gosec // a user's number is not negative
			return c, nil
		}
		_ = c.Close() // there is nothing to tell it
		e.pool.cfg.Service.audit(Record{Session: e.session, Method: "connect", Outcome: Refused, Reason: fmt.Sprintf("the process belongs to the user %d, not %d (%v)", uid, as.uid, err)})
	}
}

// Stderr returns the end of what the executor has written to its standard error, up to 16 KiB.
func (e *Process) Stderr() string { return e.stderr.String() }

// Close ends the executor: it asks it to shut down, and ends its process tree after some seconds. It
// revokes its token, and returns when all has ended. Later calls do nothing.
func (e *Process) Close() error { return e.end() }

func (e *Process) terminate() error {
	var err error
	if e.Conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTime) //nolint:forbidigo // Close has no context
		if Shutdown(ctx, e.Conn) == nil {
			_, _ = e.process.Wait(ctx) // the process tree is ended in any case
		}
		cancel()
	}
	e.pool.cfg.Service.Tokens.revoke(e.Token)
	if e.Conn != nil {
		err = e.Conn.Close()
	}
	if e.stop != nil {
		e.stop()
	}
	if e.process != nil {
		_, werr := e.process.Wait(context.Background()) //nolint:forbidigo // it was killed
		err = errors.Join(err, werr, e.process.Close())
		e.reading.Wait()
	}
	if e.dir != "" {
		err = errors.Join(err, os.RemoveAll(e.dir))
	}
	e.pool.mu.Lock()
	delete(e.pool.all, e)
	e.pool.mu.Unlock()
	return err
}

// Executors returns the running executors, in no order.
func (p *Pool) Executors() []*Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*Process
	for e := range p.all {
		list = append(list, e)
	}
	return list
}

// Close ends all executors, at once, and returns when they have ended. The pool starts no more.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.starting.Wait()
	list := p.Executors()
	errs := make([]error, len(list))
	for i, e := range list {
		p.ending.Go(func() { errs[i] = e.Close() })
	}
	p.ending.Wait()
	return errors.Join(errs...)
}
