package modal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
)

// GC ends the orphaned sandboxes of the app, as the table in the package's documentation says.
// It may run at any time, in many programs at once.
//
// If a sandbox cannot be ended, GC continues with the others. It returns the ended sandboxes
// together with the errors.
func (p Provider) GC(ctx context.Context, opts primitives.GCOptions) ([]primitives.Garbage, error) {
	var ended []primitives.Garbage
	err := p.ask(ctx, func(c *client, found []*pb.SandboxInfo) error {
		var errs []error
		for _, f := range found {
			why := garbageReason(tagsOf(f), opts)
			if why == "" {
				continue
			}
			took, err := c.take(ctx, f.GetId(), opts)
			errs = append(errs, err)
			if took {
				ended = append(ended, primitives.Garbage{Kind: "sandbox", ID: f.GetId(), Why: why, Created: created(f)})
			}
		}
		return errors.Join(errs...)
	})
	return ended, wrap("gc", p.app(), err)
}

// garbageReason returns why a sandbox is garbage, or "" if it is not.
func garbageReason(tags map[string]string, opts primitives.GCOptions) string {
	switch {
	case findOwner(tags) != owner.Dead:
		return "" // its owner may use it
	case tags[tagKeep] == keepSoon:
		return "its program died while it was made"
	case tags[tagKeep] == keepDone:
		return "" // Modal ends it in time
	case !opts.NoGrace:
		return "" // its guest ends it after the grace period
	}
	return "its program died"
}

// take ends a garbage sandbox, unless a client is attached.
func (c *client) take(ctx context.Context, id string, opts primitives.GCOptions) (took bool, err error) {
	box, err := c.Sandboxes.FromID(ctx, id, nil)
	if err != nil {
		return false, explain(err)
	}
	defer func() { err = errors.Join(err, box.Detach()) }()
	if busy, err := c.inUse(ctx, box); busy || err != nil {
		return false, err
	}
	if opts.DryRun {
		return true, nil
	}
	err = endSandbox(ctx, box)
	return err == nil, err
}

// askTimeout is how long a sandbox may take to report whether it is in use.
const askTimeout = 10 * time.Second

// inUse reports whether programs besides the owner are attached to a sandbox, on any machine.
// The guest answers; if it lies, the sandbox lives until Modal ends it. A sandbox without a
// guest is not in use.
func (c *client) inUse(ctx context.Context, box *sdk.Sandbox) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	p, err := box.Exec(ctx, append(attachArgs(), "--attended"), &sdk.SandboxExecParams{Stdout: sdk.Ignore, Stderr: sdk.Ignore})
	if err == nil {
		var code int
		if code, err = p.Wait(ctx, nil); err == nil {
			return code == 0, nil
		}
	}
	result, rerr := c.result(ctx, box.SandboxID)
	switch {
	case rerr == nil && statusOf(result).EndCause() != nil:
		return true, nil // it has ended: nothing to collect
	case errors.Is(explain(err), fs.ErrInvalid), errors.Is(explain(err), fs.ErrNotExist):
		return false, nil // it has no guest that can be started
	}
	return false, fmt.Errorf("%s: ask whether it is in use: %w", box.SandboxID, explain(err))
}
