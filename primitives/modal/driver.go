package modal

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// driver is one sandbox at Modal.
type driver struct {
	client    *client
	box       *sdk.Sandbox
	args      []string // the guest's command line
	env       map[string]string
	cfg       config  // the settings that the sandbox was created with
	program   *runner // at args[0]; nil if this handle did not install it
	recordErr error   // why cfg is not known

	sandbox *guest.Sandbox
	stream  *stream
	// owned makes Close release the client, too. Until create or attach has succeeded, they
	// release it themselves.
	owned atomic.Bool
}

var (
	_ guest.Driver            = (*driver)(nil)
	_ guest.Refiner           = (*driver)(nil)
	_ guest.Copier            = (*driver)(nil)
	_ primitives.RunnerHolder = (*driver)(nil)
	_ primitives.Snapshotter  = (*driver)(nil)
	_ primitives.PortLister   = (*driver)(nil)
)

const (
	// handshakeTimeout is how long a command may take to start. Modal may still be starting the
	// sandbox.
	handshakeTimeout = 2 * time.Minute
	// stateTimeout is how long Modal may take to return the state of a sandbox.
	stateTimeout = 5 * time.Second
	// sendTimeout is how long Close waits for a pending call.
	sendTimeout = 5 * time.Second
	// endTimeout is how long Modal may take to end a sandbox.
	endTimeout = time.Minute
	// portsTimeout is how long Modal may take to open tunnels.
	portsTimeout = 50 * time.Second
)

// open connects to the guest.
func (d *driver) open(ctx context.Context) (err error) {
	d.sandbox, err = guest.Open(ctx, d, guest.Config{
		Backend: backend, Isolation: primitives.IsolationFull, Logger: d.cfg.Logger, HandshakeTimeout: handshakeTimeout, KeepAlive: d.cfg.keepAlive,
		Kept: d.cfg.Keep,
	})
	return err
}

// openBeside installs the guest of this release beside the guest of another release, which
// refused the connection with mismatch, and connects to it. Without a runner it returns
// mismatch.
func (d *driver) openBeside(ctx context.Context, mismatch error) error {
	if err := d.cfg.findRunner(ctx); err != nil {
		return err
	}
	if d.cfg.Runner == "" {
		return mismatch
	}
	program, err := readRunner(d.cfg.Runner)
	if err != nil {
		return err
	}
	if d.cfg.Logger != nil {
		d.cfg.Logger.Info("guest of this release is installed beside another", "reason", mismatch)
	}
	at, err := program.installBeside(ctx, d.box)
	if err != nil {
		return err
	}
	d.program, d.args[0] = program, at
	return d.open(ctx)
}

// ID returns Modal's ID of the sandbox.
func (d *driver) ID() string { return d.box.SandboxID }

// Dial starts a guest.
func (d *driver) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	args := d.args
	if d.cfg.keepAlive != 0 {
		args = append(slices.Clone(args), "--keep-alive", d.cfg.keepAlive.String())
	}
	p, err := d.box.Exec(ctx, args, &sdk.SandboxExecParams{Env: d.env})
	if err != nil {
		return nil, fmt.Errorf("start the guest: %w", explain(err))
	}
	d.stream = newStream(p.Stdin, p.Stdout, p.Stderr)
	return d.stream, nil
}

// State returns the state that Modal reports. A sandbox that Modal ended for its age or its
// idle time is [primitives.StatusExited].
func (d *driver) State(ctx context.Context) (guest.Status, error) {
	result, err := d.client.result(ctx, d.ID())
	switch {
	case isNotFound(err):
		return guest.Status{State: primitives.State{Status: primitives.StatusLost}, Cause: errGone}, nil
	case err != nil:
		return guest.Status{}, explain(err)
	}
	return statusOf(result), nil
}

// End ends the sandbox.
func (d *driver) End(ctx context.Context) error {
	if err := endSandbox(ctx, d.box); err != nil {
		return err
	}
	d.stream.abandon()
	return nil
}

// endSandbox ends a sandbox and waits until it has ended, even if ctx is done. A sandbox that
// has already ended is not an error.
func endSandbox(ctx context.Context, box *sdk.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_, err := box.Terminate(ctx, &sdk.SandboxTerminateParams{Wait: true})
	if isNotFound(err) {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: Modal does not say that the sandbox has ended", primitives.ErrUnavailable)
	}
	return explain(err)
}

// Close releases the handle. The sandbox lives on for its grace period, see [primitives.Spec].
func (d *driver) Close() error {
	d.stream.join(sendTimeout)
	if !d.owned.Load() {
		return nil
	}
	err := d.box.Detach()
	d.client.Close()
	return err
}

// Refine removes snapshots and forks from the capabilities of a sandbox that cannot be copied.
func (d *driver) Refine(c primitives.Capabilities) primitives.Capabilities {
	c.Snapshot = d.copyable() == nil
	c.Fork = c.Snapshot
	return c
}

// Ports returns the public addresses of the ports of Spec.Ports.
func (d *driver) Ports(ctx context.Context) ([]primitives.Port, error) {
	tunnels, err := d.box.Tunnels(ctx, portsTimeout, nil)
	if err != nil {
		return nil, explain(err)
	}
	ports := make([]primitives.Port, 0, len(tunnels))
	for number, t := range tunnels {
		ports = append(ports, primitives.Port{Number: number, Protocol: "tcp", Address: t.URL()})
	}
	slices.SortFunc(ports, func(a, b primitives.Port) int { return a.Number - b.Number })
	return ports, nil
}

// RunnerPath returns the path in the sandbox of the runner that lies in file on this machine. It is
// empty if this handle did not install that file, or if the sandbox's user may not run it.
func (d *driver) RunnerPath(file string) string {
	if d.program == nil || d.program.file != file || d.cfg.User != "" {
		return ""
	}
	return d.args[0]
}

// finishCreate finishes a new sandbox once its guest works.
func (d *driver) finishCreate(ctx context.Context, settings []byte, tags map[string]string) error {
	if err := d.writeRecord(ctx, settings); err != nil {
		return err
	}
	if err := awaitReady(ctx, d.box, d.cfg.Ready); err != nil {
		return err
	}
	if d.cfg.Keep {
		tags[tagKeep] = keepDone
		if err := d.box.SetTags(ctx, tags, nil); err != nil {
			return explain(err)
		}
	}
	return ctx.Err() // the caller may have cancelled
}

// explainStart adds to err, for a guest that could not be started, why the sandbox has ended,
// if it has.
func (d *driver) explainStart(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	result, rerr := d.client.result(ctx, d.ID())
	if rerr != nil {
		return err
	}
	if cause := statusOf(result).EndCause(); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
