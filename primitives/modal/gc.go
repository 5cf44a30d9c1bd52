package modal

import (
	"context"
	"errors"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/agentenv-dev/agentenv/internal/owner"
)

// GCOptions says what [GC] does. The zero value is what is always safe to do.
type GCOptions struct {
	// DryRun only tells what would be ended.
	DryRun bool
	// NoGrace also ends sandboxes whose program has died and that still wait for
	// somebody to attach to them, but none that is kept. One that a program of
	// another machine has attached to meanwhile has that program.
	NoGrace bool
}

// Garbage is something that [GC] ended or would end.
type Garbage struct {
	Kind    string // what it is: "sandbox"
	ID      string
	Why     string // for people
	Created time.Time
}

// GC ends the sandboxes of the app that programs have left that died, as the table in
// the package's documentation says. Of cfg only App, Environment and Profile count.
// It may run at any time, in many programs at once.
//
// It goes on when something cannot be ended, and returns what was ended together
// with the error.
func GC(ctx context.Context, cfg Config, opts GCOptions) ([]Garbage, error) {
	var ended []Garbage
	err := ask(ctx, cfg, func(c *client, found []*pb.SandboxInfo) error {
		var errs []error
		for _, f := range found {
			why := judge(tagsOf(f), opts)
			if why == "" {
				continue
			}
			if !opts.DryRun {
				if err := c.end(ctx, f.GetId()); err != nil {
					errs = append(errs, err)
					continue
				}
			}
			ended = append(ended, Garbage{"sandbox", f.GetId(), why, created(f)})
		}
		return errors.Join(errs...)
	})
	return ended, wrap("gc", cfg.app(), err)
}

// judge says why a sandbox is garbage; empty if it is not.
func judge(tags map[string]string, opts GCOptions) string {
	switch {
	case findOwner(tags) != owner.Dead:
		return "" // somebody may use it
	case tags[tagKeep] == keepSoon:
		return "its program died while it was made"
	case tags[tagKeep] == keepDone:
		return "" // Modal ends it in time
	case !opts.NoGrace:
		return "" // its guest counts the grace
	}
	return "its program died"
}

// end ends a sandbox by its ID.
func (c *client) end(ctx context.Context, id string) error {
	box, err := c.Sandboxes.FromID(ctx, id, nil)
	if err != nil {
		return explain(err)
	}
	return errors.Join(endSandbox(ctx, box), box.Detach())
}
