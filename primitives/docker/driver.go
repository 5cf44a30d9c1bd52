package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/agentenv-dev/agentenv/internal/ended"
	"github.com/agentenv-dev/agentenv/internal/tail"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/engine"
	"github.com/agentenv-dev/agentenv/primitives/docker/internal/fastpath"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// driver implements guest.Driver for one container.
type driver struct {
	eng       *client.Client
	id        string // the sandbox's ID, which is the container's name
	container string // the engine's ID of the container
	cfg       config // what it was made with
	arch      string // of the image's programs; empty if unknown
	volumes   []string
	program   string // the guest's path in the container, to start one more
	// first says that the guest is the container's first process, which Dial starts.
	first bool
	// forkedFrom is the image that is removed with the last sandbox made of it; empty if
	// there is none.
	forkedFrom string

	sandbox *guest.Sandbox
	sweep   *sweep      // started by create; nil if it was not due
	owned   atomic.Bool // Close releases the client; before, the caller of open does

	paused atomic.Bool               // this handle has paused it
	frozen atomic.Pointer[time.Time] // when this handle has paused or resumed it; nil: never
}

var (
	_ guest.Driver            = (*driver)(nil)
	_ guest.Ender             = (*driver)(nil)
	_ guest.Refiner           = (*driver)(nil)
	_ guest.Copier            = (*driver)(nil)
	_ primitives.Snapshotter  = (*driver)(nil)
	_ primitives.Pauser       = (*driver)(nil)
	_ primitives.UsageReader  = (*driver)(nil)
	_ primitives.PortLister   = (*driver)(nil)
	_ primitives.RunnerHolder = (*driver)(nil)
)

// open connects to the guest, which may move to a socket in folder; empty means no socket.
func (d *driver) open(ctx context.Context, folder string, cfg config) (err error) {
	expected := expect(folder, cfg)
	defer expected.Close()
	d.sandbox, err = guest.Open(ctx, d, guest.Config{Backend: backend, Logger: cfg.Logger, Socket: expected.Socket, Isolation: cfg.isolation(), Kept: cfg.Keep})
	return err
}

// handOver returns the sandbox. From now on Close releases the client.
func (d *driver) handOver() *guest.Sandbox {
	d.owned.Store(true)
	return d.sandbox
}

// ID returns the container's name.
func (d *driver) ID() string { return d.id }

// Dial starts the container with its guest or, in a running container, one more guest for this
// program.
func (d *driver) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if !d.first {
		return d.join(ctx)
	}
	// Attach before the start, so that no output is lost.
	conn, err := engine.Hijack(ctx, func(ctx context.Context) (types.HijackedResponse, error) {
		return d.eng.ContainerAttach(ctx, d.container, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	})
	if err != nil {
		return nil, fmt.Errorf("attach to the container: %w", err)
	}
	if err := d.eng.ContainerStart(ctx, d.container, container.StartOptions{}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start the container: %w", err)
	}
	return newStream(conn), nil
}

func (d *driver) join(ctx context.Context) (io.ReadWriteCloser, error) {
	made, err := d.eng.ContainerExecCreate(ctx, d.container, container.ExecOptions{
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Cmd: []string{d.program, "guest", "--root", guestRoot, "--attach", "-", "--linger"},
	})
	if err != nil {
		return nil, err
	}
	conn, err := engine.Hijack(ctx, func(ctx context.Context) (types.HijackedResponse, error) {
		return d.eng.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{})
	})
	if err != nil {
		return nil, err
	}
	return newStream(conn), nil
}

// Refine sets the architecture, and clears Snapshot and Fork if the sandbox cannot be copied.
func (d *driver) Refine(c primitives.Capabilities) primitives.Capabilities {
	if d.arch != "" {
		c.Arch = d.arch // the guest knows its own
	}
	c.Snapshot = d.copyable() == nil
	c.Fork = c.Snapshot
	return c
}

// State returns the state that the engine reports. A container that has ended is
// [primitives.StatusExited] with the status of its first process while the engine knows it, else
// [primitives.StatusLost]. Just after a pause or a resume the engine may be wrong; then State asks
// again.
func (d *driver) State(ctx context.Context) (guest.Status, error) {
	tick := time.NewTicker(stateInterval)
	defer tick.Stop()
	for {
		state, err := engineState(ctx, d.eng, d.container)
		if err != nil {
			return guest.Status{}, err
		}
		paused := state.Status == primitives.StatusPaused
		if !paused && !state.Running() || paused == d.paused.Load() || !d.justFrozen() {
			return guest.Status{State: state, Cause: gone(state)}, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return guest.Status{State: state}, nil
		}
	}
}

// errGone says that the container has ended.
var errGone = ended.Because(fmt.Errorf("%w: the container has ended", primitives.ErrUnavailable))

// gone returns why a container that does not run has ended.
func gone(state primitives.State) error {
	if state.Exit.Reason == primitives.ReasonOOM {
		return ended.Because(fmt.Errorf("%w: the container has ended because it had used up its memory; set a higher memory limit", primitives.ErrUnavailable))
	}
	return errGone
}

// BeginEnd tells the other handles that Terminate was called, resumes the container if another
// handle has paused it, and begins to wait for the end of the guest.
func (d *driver) BeginEnd(ctx context.Context) (finish func(hangUp func() bool)) {
	began := time.Now()
	stop := d.resumeWhileEnding(ctx)
	var marking sync.WaitGroup
	marked := d.sandbox.Err() == nil
	if marked {
		marking.Go(func() { markEnd(ctx, d.eng, d.container) })
	}
	waitEnd := d.awaitOwnEnd(ctx)
	return func(hangUp func() bool) {
		stop()
		marking.Wait()
		if marked && time.Since(began) > markLasts {
			markEnd(ctx, d.eng, d.container)
		}
		waitEnd(d.first && hangUp())
	}
}

// End removes the container.
func (d *driver) End(ctx context.Context) error {
	if err := errors.Join(removeContainer(ctx, d.eng, d.container), fastpath.Remove(d.eng.DaemonHost(), d.id)); err != nil {
		return err
	}
	return d.dropForkImage(ctx)
}

// Close releases the client. The container lives on for its grace period, see [primitives.Spec].
func (d *driver) Close() error {
	if !d.owned.Load() {
		return nil
	}
	d.sweep.stop()
	return engine.Release(d.eng)
}

// explain explains an error of the engine. If the container has ended it returns the cause of the
// end instead.
func (d *driver) explain(ctx context.Context, err error) error {
	err = engine.Explain(d.eng, err)
	if !isMissingOrBusy(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stateTimeout)
	defer cancel()
	status, serr := d.State(ctx)
	if serr != nil {
		return errors.Join(err, serr)
	}
	if cause := status.EndCause(); cause != nil {
		return cause
	}
	return err
}

// stream is a connection to a guest: it reads the standard output of the container's process and
// writes to its standard input. It keeps the end of its standard error.
type stream struct {
	conn   net.Conn
	r      *bufio.Reader
	left   uint32 // bytes of the frame that is being read
	stderr tail.Buffer
}

// aheadOfFrame is the size of a stream's read buffer: the head of a frame and a short frame as a
// whole. A larger buffer would cost memory for every idle stream.
const aheadOfFrame = 512

func newStream(h types.HijackedResponse) *stream {
	r := h.Reader
	if r.Buffered() == 0 {
		r = bufio.NewReaderSize(h.Conn, aheadOfFrame)
	}
	return &stream{conn: h.Conn, r: r}
}

// Read reads standard output. The engine sends both outputs in frames: a byte for the output, three
// zero bytes, the length, and the data.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for s.left == 0 {
		var head [8]byte
		if _, err := io.ReadFull(s.r, head[:]); err != nil {
			return 0, err
		}
		n := binary.BigEndian.Uint32(head[4:])
		switch stdcopy.StdType(head[0]) {
		case stdcopy.Stdout:
			s.left = n
		case stdcopy.Stderr, stdcopy.Systemerr:
			if _, err := io.CopyN(&s.stderr, s.r, int64(n)); err != nil {
				return 0, err
			}
		default:
			return 0, errFrame
		}
	}
	n, err := s.r.Read(p[:min(int64(len(p)), int64(s.left))])
	s.left -= uint32(n)
	if errors.Is(err, io.EOF) && s.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

var errFrame = errors.New("the engine sent no frames; does the container have a terminal?")

func (s *stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// Close closes the connection, which the engine passes on as EOF on standard input.
func (s *stream) Close() error { return s.conn.Close() }

// Stderr returns the end of standard error.
func (s *stream) Stderr() string { return s.stderr.String() }
