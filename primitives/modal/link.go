package modal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// link is the way to a guest.
type link struct {
	worker *guest.Client
	stream *stream
	fate   func() (fate, error) // asks Modal

	mu    sync.Mutex
	cause error // why the stream has ended
}

const (
	// handshakeTimeout is for how long a command may take to start. Modal may still
	// be starting the sandbox.
	handshakeTimeout = 2 * time.Minute
	// fateTimeout is how long Modal may take to tell what became of a sandbox.
	fateTimeout = 5 * time.Second
	fatePause   = 100 * time.Millisecond
	// fateAttempts: how often it is asked whether a sandbox ended whose stream did.
	fateAttempts = 20
	// sendTimeout is how long Close waits for a call that is under way.
	sendTimeout = 5 * time.Second
)

// dial starts a guest in a sandbox, with these variables, and shakes hands with it.
func dial(ctx context.Context, c *client, box *sdk.Sandbox, args []string, env map[string]string, cfg Config) (*link, error) {
	p, err := box.Exec(ctx, args, &sdk.SandboxExecParams{Env: env})
	if err != nil {
		return nil, fmt.Errorf("start the guest: %w", explain(err))
	}
	outlives := context.WithoutCancel(ctx)
	l := &link{stream: newStream(p.Stdin, p.Stdout)}
	l.fate = func() (fate, error) {
		ctx, cancel := context.WithTimeout(outlives, fateTimeout)
		defer cancel()
		result, err := c.result(ctx, box.SandboxID)
		if err != nil {
			return fate{}, explain(err)
		}
		return fateOf(result), nil
	}
	worker, err := guest.Dial(ctx, l.stream, guest.Config{
		Backend: backend, Isolation: primitives.IsolationFull, Logger: cfg.Logger, Ended: l.ended, HandshakeTimeout: handshakeTimeout, KeepAlive: cfg.keepAlive,
	})
	if err != nil {
		l.stream.join(sendTimeout)
		if tail := lastWords(p.Stderr); tail != "" {
			err = fmt.Errorf("%w; the guest wrote: %s", err, tail)
		}
		return nil, err
	}
	l.worker = worker
	return l, nil
}

const (
	maxWords     = 4 << 10
	wordsTimeout = 2 * time.Second
)

// lastWords returns what a guest that failed has written on standard error.
func lastWords(stderr io.ReadCloser) string {
	timer := time.AfterFunc(wordsTimeout, func() { _ = stderr.Close() })
	defer timer.Stop()
	b, _ := io.ReadAll(io.LimitReader(stderr, maxWords))
	_ = stderr.Close()
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "?")
}

// ended explains why the guest's stream has ended. It asks Modal once.
func (l *link) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause == nil {
		l.cause = l.findCause()
	}
	return l.cause
}

// findCause waits a moment for Modal to notice the end of the sandbox, which the
// stream may be ahead of.
func (l *link) findCause() error {
	tick := time.NewTicker(fatePause)
	defer tick.Stop()
	for range fateAttempts {
		f, err := l.fate()
		switch {
		case err != nil && isNotFound(err):
			return errGone
		case err != nil:
			return fmt.Errorf("%w: %w", primitives.ErrUnavailable, err)
		case f.cause != nil:
			return f.cause
		}
		<-tick.C
	}
	return errBroken
}

var errBroken = fmt.Errorf("%w: the connection to the guest broke; attach to the sandbox again", primitives.ErrUnavailable)

// setTerminated says that Terminate was called.
func (l *link) setTerminated() {
	l.mu.Lock()
	l.cause = primitives.ErrTerminated
	l.mu.Unlock()
}

func (l *link) isTerminated() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Is(l.cause, primitives.ErrTerminated)
}

// explainStart says why a guest could not be started, if that is because the sandbox
// has ended.
func explainStart(ctx context.Context, c *client, box *sdk.Sandbox, err error) error {
	if ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, fateTimeout)
	defer cancel()
	result, rerr := c.result(ctx, box.SandboxID)
	if rerr != nil {
		return err
	}
	if f := fateOf(result); f.cause != nil {
		return fmt.Errorf("%w: %w", f.cause, err)
	}
	return err
}
