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
	client  *client
	box     *sdk.Sandbox
	args    []string // the guest's command line
	env     map[string]string
	cfg     config  // what it was made with
	program *runner // at args[0]; nil if it was not put there by this handle
	strange error   // why it is not known what it was made with

	sandbox *guest.Sandbox
	stream  *stream
	// owned says that Close gives up the client, too: New and Attach do that themselves
	// until they have succeeded.
	owned atomic.Bool
}

var (
	_ guest.Driver           = (*driver)(nil)
	_ guest.Refiner          = (*driver)(nil)
	_ guest.Copier           = (*driver)(nil)
	_ guest.RunnerHolder     = (*driver)(nil)
	_ primitives.Snapshotter = (*driver)(nil)
	_ primitives.PortLister  = (*driver)(nil)
)

const (
	// handshakeTimeout is for how long a command may take to start. Modal may still
	// be starting the sandbox.
	handshakeTimeout = 2 * time.Minute
	// stateTimeout is how long Modal may take to tell the state of a sandbox.
	stateTimeout = 5 * time.Second
	// sendTimeout is how long Close waits for a call that is under way.
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

// openBeside installs the guest of this release beside one of another release, which refused
// with mismatch, and connects to it. Without a runner it returns mismatch.
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
	p, err := d.box.Exec(ctx, d.args, &sdk.SandboxExecParams{Env: d.env})
	if err != nil {
		return nil, fmt.Errorf("start the guest: %w", explain(err))
	}
	d.stream = newStream(p.Stdin, p.Stdout, p.Stderr)
	return d.stream, nil
}

// State asks Modal. A sandbox that has become too old or was idle for too long is
// [primitives.StatusExited].
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

// endSandbox ends a sandbox and waits for that, also when ctx is done. It is no error
// if it has ended.
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

// Close lets go of the sandbox. It lives on for a while, see [primitives.Spec].
func (d *driver) Close() error {
	d.stream.join(sendTimeout)
	if !d.owned.Load() {
		return nil
	}
	err := d.box.Detach()
	d.client.Close()
	return err
}

// Refine takes copies from a sandbox that cannot be copied.
func (d *driver) Refine(c primitives.Capabilities) primitives.Capabilities {
	c.Snapshot = d.copyable() == nil
	c.Fork = c.Snapshot
	return c
}

// Ports returns where the ports of Spec.Ports can be reached from the internet.
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

// Runner returns where in the sandbox a runner of this machine lies; empty if this handle
// did not put it there, or a user there may not run it.
func (d *driver) Runner(file string) string {
	if d.program == nil || d.program.file != file || d.cfg.User != "" {
		return ""
	}
	return d.args[0]
}

// settle does what is left to do for a new sandbox once its guest works.
func (d *driver) settle(ctx context.Context, settings []byte, tags map[string]string) error {
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
	return ctx.Err() // the caller may have given up
}

// explainStart says why a guest could not be started, if that is because the sandbox
// has ended.
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
