package docker

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// link is the way into a container.
type link struct {
	guest     *guest.Client
	container string
	conn      net.Conn // of the engine; the guest may have left it for a socket
	first     bool     // it leads to the container's first process
	arch      string   // of the image's programs

	fate func() (primitives.State, error) // asks the engine

	mu    sync.Mutex
	cause error // why the stream has ended
}

// startGuest starts a container that the guest is in.
func startGuest(ctx context.Context, eng *client.Client, id, name string, cfg Config) (*link, error) {
	// Before the start, so that nothing is missed.
	conn, err := hijack(ctx, func(ctx context.Context) (types.HijackedResponse, error) {
		return eng.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	})
	if err != nil {
		return nil, fmt.Errorf("attach to the container: %w", err)
	}
	if err := eng.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start the container: %w", err)
	}
	l, err := dial(ctx, eng, id, conn, linkFolder(eng, name), cfg)
	if err == nil {
		l.first = true
	}
	return l, err
}

// joinContainer starts one more guest beside the first one, for this program. program is
// its path in the container, and folder is where the container expects a socket; empty
// for nowhere.
func joinContainer(ctx context.Context, eng *client.Client, id, program, folder string, cfg Config) (*link, error) {
	made, err := eng.ContainerExecCreate(ctx, id, container.ExecOptions{
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Cmd: []string{program, "guest", "--root", guestRoot, "--attach", "-", "--linger"},
	})
	if err != nil {
		return nil, err
	}
	conn, err := hijack(ctx, func(ctx context.Context) (types.HijackedResponse, error) {
		return eng.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{})
	})
	if err != nil {
		return nil, err
	}
	return dial(ctx, eng, id, conn, folder, cfg)
}

// dial shakes hands with the guest at the other end of an attached stream.
func dial(ctx context.Context, eng *client.Client, id string, conn types.HijackedResponse, folder string, cfg Config) (*link, error) {
	outlives := context.WithoutCancel(ctx)
	l := &link{container: id}
	l.fate = func() (primitives.State, error) {
		ctx, cancel := context.WithTimeout(outlives, fateTimeout)
		defer cancel()
		return fate(ctx, eng, id)
	}
	stream := newStream(conn)
	meeting := expect(folder, cfg)
	defer meeting.close()
	c, err := guest.Dial(ctx, stream, guest.Config{Backend: backend, Logger: cfg.Logger, Ended: l.ended, Socket: meeting.socket, Isolation: cfg.isolation()})
	if err == nil {
		l.guest, l.conn = c, conn.Conn
		return l, nil
	}
	if tail := stream.stderr(); tail != "" {
		err = &saidError{err, tail}
	}
	return nil, err
}

// saidError is that the guest has not answered, with what it wrote instead.
type saidError struct {
	error
	said string
}

func (e *saidError) Error() string { return e.error.Error() + "; the guest wrote: " + e.said }
func (e *saidError) Unwrap() error { return e.error }

// fateTimeout is how long the engine may take to tell what became of a container.
const fateTimeout = 5 * time.Second

// ended explains why the guest's stream has ended. It asks the engine once.
func (l *link) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause == nil {
		l.cause = l.findCause()
	}
	return l.cause
}

// findCause waits a moment for the engine to notice the end of the container,
// which the stream may be ahead of.
func (l *link) findCause() error {
	tick := time.NewTicker(fatePause)
	defer tick.Stop()
	for range fateAttempts {
		state, err := l.fate()
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", primitives.ErrUnavailable, err)
		case state.Status == primitives.StatusTerminated:
			return primitives.ErrTerminated
		case state.Status == primitives.StatusPaused:
			return errPausedAway
		case !state.Running():
			return gone(state)
		}
		<-tick.C
	}
	return fmt.Errorf("%w: the connection to the guest broke; attach to the sandbox again", primitives.ErrUnavailable)
}

const (
	fatePause    = 50 * time.Millisecond
	fateAttempts = 20
)

// errGone says that nothing runs any more.
var errGone = fmt.Errorf("%w: the container has ended: %w", primitives.ErrUnavailable, os.ErrProcessDone)

// gone is errGone with what the state tells of the reason.
func gone(state primitives.State) error {
	if state.Exit.Reason == primitives.ReasonOOM {
		return fmt.Errorf("%w: the container has ended because it had used up its memory (%w); set a higher memory limit", primitives.ErrUnavailable, os.ErrProcessDone)
	}
	return errGone
}

// errPausedAway is what a handle gets whose sandbox was paused by somebody else.
var errPausedAway = fmt.Errorf("%w: its container is paused, and the connection to the guest was given up; attach to the sandbox again, which resumes it", primitives.ErrUnavailable)

// setTerminated says that Terminate was called.
func (l *link) setTerminated() {
	l.mu.Lock()
	l.cause = primitives.ErrTerminated
	l.mu.Unlock()
}
