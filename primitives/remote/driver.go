package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/coder/websocket"

	"github.com/agentenv-dev/agentenv/internal/sandboxapi"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/guest"
)

// driver is the guest.Driver of one sandbox on a server.
type driver struct {
	provider Provider
	id       string
	can      primitives.Capabilities // of the sandbox, as the server knows them
}

var (
	_ guest.Driver           = (*driver)(nil)
	_ guest.Refiner          = (*driver)(nil)
	_ primitives.Pauser      = (*driver)(nil)
	_ primitives.UsageReader = (*driver)(nil)
)

// ID returns the sandbox's ID, which is unique on its server.
func (d *driver) ID() string { return d.id }

// open connects to the sandbox.
func (d *driver) open(ctx context.Context, keep bool) (*guest.Sandbox, error) {
	return guest.Open(ctx, d, guest.Config{Backend: backend, Logger: d.provider.Logger, HandshakeTimeout: callTimeout, Kept: keep})
}

// Dial connects to the sandbox.
func (d *driver) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	header, err := d.provider.header()
	if err != nil {
		return nil, err
	}
	dialing, cancel := d.provider.bounded(ctx)
	defer cancel()
	at := d.provider.address(sandboxapi.Of(d.id, "connect"))
	conn, res, err := websocket.Dial(dialing, at, &websocket.DialOptions{ //nolint:bodyclose // it is the stream, or was read
		HTTPClient: d.provider.client(), HTTPHeader: header, Subprotocols: []string{sandboxapi.Protocol},
	})
	switch {
	case err == nil:
		return sandboxapi.Stream(ctx, conn), nil
	case res != nil && res.StatusCode != http.StatusSwitchingProtocols:
		return nil, answered(res)
	}
	return nil, d.provider.unreachable(dialing, err)
}

// State asks the server. A sandbox that is not there was terminated, by a program or because its grace period was over.
func (d *driver) State(ctx context.Context) (guest.Status, error) {
	is, err := d.provider.find(ctx, d.id)
	if gone(err) {
		is.State.Status, err = primitives.StatusTerminated, nil
	}
	status := guest.Status{State: is.State}
	if is.State.Status == primitives.StatusLost {
		status.Cause = fmt.Errorf("%w: the server has lost it; attach to it again", primitives.ErrUnavailable)
	}
	return status, err
}

// End removes the sandbox.
func (d *driver) End(ctx context.Context) error {
	err := d.provider.call(context.WithoutCancel(ctx), http.MethodDelete, sandboxapi.Of(d.id), nil, nil)
	if gone(err) {
		return nil
	}
	return err
}

// Close does nothing. The server ends the sandbox after its grace period.
func (d *driver) Close() error { return nil }

// Pause freezes the sandbox.
func (d *driver) Pause(ctx context.Context) error {
	return d.provider.call(ctx, http.MethodPost, sandboxapi.Of(d.id, "pause"), nil, nil)
}

// Resume ends a pause.
func (d *driver) Resume(ctx context.Context) error {
	return d.provider.call(ctx, http.MethodPost, sandboxapi.Of(d.id, "resume"), nil, nil)
}

// ReadUsage returns what the sandbox uses.
func (d *driver) ReadUsage(ctx context.Context) (u primitives.Usage, err error) {
	err = d.provider.call(ctx, http.MethodGet, sandboxapi.Of(d.id, "usage"), nil, &u)
	return u, err
}

// Refine adds what the server knows.
func (d *driver) Refine(c primitives.Capabilities) primitives.Capabilities {
	c.Isolation, c.Pause, c.Usage = d.can.Isolation, d.can.Pause, d.can.Usage
	return c
}
