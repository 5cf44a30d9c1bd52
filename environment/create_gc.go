package environment

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/primitives"
)

// GCOptions says what [GC] does. The zero value is what is always safe to do.
type GCOptions struct {
	primitives.GCOptions
	// Logger takes a record for each thing that was found and removed; nil means
	// silence.
	Logger hclog.Logger
}

// Garbage is something that [GC] removed or would remove.
type Garbage struct {
	Type string `json:"type"` // of the sandbox, as in [Sandbox]
	primitives.Garbage
}

// GC removes what programs have left that died: sandboxes that cannot be used, and
// those that were not kept and nobody uses. It never removes a sandbox whose
// program lives, that somebody is attached to, or that was made with
// Keep and has not expired.
//
// It goes on when something cannot be removed, and returns what was removed
// together with the error.
func GC(ctx context.Context, s Sandbox, opts GCOptions) ([]Garbage, error) {
	p, err := s.provider(Config{})
	if err != nil {
		return nil, err
	}
	c, ok := p.(primitives.Collector)
	if !ok {
		return nil, nil // its sandboxes end by themselves
	}
	found, err := c.GC(ctx, opts.GCOptions)
	removed := make([]Garbage, 0, len(found))
	log := Config{Logger: opts.Logger}.SafeLogger().With(eventlog.Type, s.Type)
	for _, r := range found {
		removed = append(removed, Garbage{s.Type, r})
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
