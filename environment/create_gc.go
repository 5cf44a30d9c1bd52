package environment

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
)

// GCOptions says what [GC] does. The zero value is what is always safe to do.
type GCOptions struct {
	// DryRun only tells what would be removed.
	DryRun bool
	// NoGrace also removes sandboxes whose program has died and whose grace, in which
	// another program can attach to them, is not over.
	NoGrace bool
	// Logger takes a record for each thing that was found and removed; nil means
	// silence.
	Logger hclog.Logger
}

// Garbage is something that [GC] removed or would remove.
type Garbage struct {
	Type    string    `json:"type"` // of the sandbox, as in [Sandbox]
	Kind    string    `json:"kind"` // "container", "volume", "image", "folder" or "sandbox"
	ID      string    `json:"id"`   // its name
	Why     string    `json:"why"`  // for people
	Created time.Time `json:"created,omitzero"`
}

// GC removes what programs have left that died: sandboxes that cannot be used, and
// those that were not kept and nobody uses. It never removes a sandbox whose
// program lives, that somebody is attached to, or that was made with
// [Config].Keep and has not expired.
//
// It goes on when something cannot be removed, and returns what was removed
// together with the error.
func GC(ctx context.Context, s Sandbox, opts GCOptions) ([]Garbage, error) {
	b, err := s.backend()
	if err != nil {
		return nil, err
	}
	removed, err := b.gc(ctx, s, opts)
	log := Config{Logger: opts.Logger}.SafeLogger().With(eventlog.Type, s.Type)
	for i, r := range removed {
		removed[i].Type = s.Type
		if !opts.DryRun {
			forget(s.Type, r.ID)
		}
		what := "orphan removed"
		if opts.DryRun {
			what = "orphan found"
		}
		log.Info(what, eventlog.Sandbox, r.ID, "kind", r.Kind, "why", r.Why)
	}
	if err != nil {
		log.Warn("orphans cannot be removed", eventlog.Error, err)
		err = fmt.Errorf("remove what is left of sandboxes: %w", err)
	}
	return removed, err
}
