package environment

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/agentenv-dev/agentenv/environment/internal/kept"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/internal/owner"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// SandboxInfo describes a sandbox that can be attached to.
type SandboxInfo struct {
	ID      string            `json:"id"`
	Type    string            `json:"type"`
	Status  primitives.Status `json:"status"`
	Created time.Time         `json:"created"`
	// InUse means that its owner still runs.
	InUse bool `json:"in_use"`
	// Owner is the owner, as host:pid, for people; empty if unknown.
	Owner string `json:"owner,omitempty"`
	// Image is the image that a container, or a sandbox at Modal, was created from; empty for
	// other types.
	Image string `json:"image,omitempty"`
	// Name is [Config].Name, or its name at Modal; empty for none.
	Name string `json:"name,omitempty"`
	// Kept means that it outlives its owner.
	Kept bool `json:"kept"`
	// Orphan means that its owner has died and it was not created with Keep: [GC] removes it.
	Orphan bool `json:"orphan,omitempty"`
	// OrphanSince is when its owner was found dead; zero if that is not known.
	OrphanSince time.Time `json:"orphan_since,omitzero"`
	// Ending means that a program is ending it.
	Ending bool `json:"ending,omitempty"`
	// GuestVersion is the version of the guest protocol that it was created with, which may
	// differ from this release's. Zero means that it is unknown, or that it needs none.
	GuestVersion int `json:"guest_version,omitempty"`
	// SessionID is the conversation that it was created for, if the type stores it.
	SessionID string `json:"session_id,omitempty"`
	// Agent is the agent that was chosen for it; empty for none. Agent, Usage and the times of
	// queries are known only to the user and machine that created the sandbox.
	Agent string `json:"agent,omitempty"`
	// QueryBegan and QueryEnded are when the latest query of [Environment.ExecuteQuery] began
	// and ended; zero means not yet. The end of a query whose program was killed is unknown, see
	// [Environment.Working].
	QueryBegan time.Time `json:"query_began,omitzero"`
	QueryEnded time.Time `json:"query_ended,omitzero"`
	// QueryBy is the program of the latest query, as host:pid, for people. QueryOwned means that it
	// is alive, and QueryLost that it died before the query ended: in a kept sandbox the query may
	// go on, see [Environment.Working]. Neither is set if this machine cannot know.
	QueryBy    string `json:"query_by,omitempty"`
	QueryOwned bool   `json:"query_owned,omitempty"`
	QueryLost  bool   `json:"query_lost,omitempty"`
	// Waiting are the permission requests of the query that wait for an answer, as the program of
	// the query has seen them; see [Environment.Waiting] for a query without one.
	Waiting []Waiting `json:"waiting,omitempty"`
	// Usage is what its queries have used of models: as the agent reported it, or else as the
	// gateway counted it.
	Usage runnerscripts.Usage `json:"usage,omitzero"`
}

// List returns the sandboxes of a type that this user created and that still live, oldest first.
// If some cannot be listed, List returns the others together with the error.
func List(ctx context.Context, s Sandbox) ([]SandboxInfo, error) {
	p, err := s.provider(Config{})
	if err != nil {
		return nil, err
	}
	found, err := p.List(ctx)
	list := make([]SandboxInfo, 0, len(found))
	for _, f := range found {
		list = append(list, SandboxInfo{
			ID: f.ID, Type: s.Type, Status: f.Status, Created: f.Created, InUse: f.Owned,
			Image: f.Image, Name: f.Name, Kept: f.Kept, Orphan: f.Orphan, GuestVersion: f.GuestVersion,
			SessionID: f.Session, OrphanSince: f.OrphanSince, Owner: f.Owner,
		})
	}
	if err != nil {
		err = fmt.Errorf("list the sandboxes: %w", err)
	}
	addRemembered(list)
	return list, err
}

// GCOptions configures [GC]. The zero value is always safe.
type GCOptions struct {
	primitives.GCOptions
	// Logger receives a record for each thing that was found or removed; nil discards them.
	Logger hclog.Logger
}

// Garbage is something that [GC] removed or would remove.
type Garbage struct {
	Type string `json:"type"` // of the sandbox, as in [Sandbox]
	primitives.Garbage
}

// GC removes orphans: sandboxes that cannot be used, and sandboxes that are not kept and have no
// client. It never removes a sandbox whose owner lives, that has a client, or that was created
// with Keep and has not expired.
//
// If GC cannot remove something it continues, and returns what it removed together with the
// error.
func GC(ctx context.Context, s Sandbox, opts GCOptions) ([]Garbage, error) {
	p, err := s.provider(Config{})
	if err != nil {
		return nil, err
	}
	c, ok := p.(primitives.Collector)
	if !ok {
		return nil, nil // sandboxes of this type end by themselves
	}
	found, err := c.GC(ctx, opts.GCOptions)
	removed := make([]Garbage, 0, len(found))
	log := Config{Logger: opts.Logger}.SafeLogger().With(eventlog.Type, s.Type)
	for _, r := range found {
		removed = append(removed, Garbage{s.Type, r})
		if !opts.DryRun {
			kept.Forget(s.Type, r.ID)
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

// endingLasts is how long a sandbox is shown as ending. Ending may take longer, but then the
// program that ends it has probably died.
const endingLasts = time.Minute

// addRemembered adds what this machine remembers to a list of sandboxes.
func addRemembered(list []SandboxInfo) {
	records, err := kept.Open()
	if err != nil {
		return
	}
	defer func() { _ = records.Close() }() // it was only read
	for i := range list {
		s := &list[i]
		r, _ := records.Load(s.Type, s.ID)
		if r == nil {
			continue
		}
		s.describe(r)
		if s.Kept {
			s.Orphan, s.OrphanSince = false, time.Time{}
		}
		s.Ending = !r.Ending.IsZero() && time.Since(r.Ending) < endingLasts && (s.Kept || s.InUse)
	}
}

// describe adds what this machine remembers of the sandbox.
func (s *SandboxInfo) describe(r *kept.Record) {
	if r.Name != "" {
		s.Name = r.Name
	}
	s.Agent, s.Usage, s.QueryBegan, s.QueryEnded = r.Agent, r.Usage, r.Began, r.Ended
	s.Kept = s.Kept || r.Kept
	if r.By.PID == "" {
		return
	}
	s.QueryBy = r.By.Host + ":" + r.By.PID
	if r.Ended.IsZero() {
		lives := r.By.Liveness()
		s.QueryOwned, s.QueryLost = lives == owner.Alive, lives == owner.Dead
		for _, w := range r.Waiting {
			s.Waiting = append(s.Waiting, Waiting(w))
		}
	}
}

// Remembered returns what this machine remembers of a sandbox: its name, its agent and its latest
// query. It asks neither the sandbox nor its backend, so it also works for a sandbox that has just
// ended, and does not say whether it lives: Status is empty. For an unknown sandbox the error is
// fs.ErrNotExist.
func Remembered(typ, id string) (SandboxInfo, error) {
	r, err := kept.Find(typ, id)
	if err != nil {
		return SandboxInfo{}, err
	}
	s := SandboxInfo{ID: id, Type: typ}
	s.describe(r)
	return s, nil
}

// lives reports whether a sandbox exists.
func lives(ctx context.Context, typ, id string) (bool, error) {
	list, err := List(ctx, Sandbox{Type: typ})
	return slices.ContainsFunc(list, func(s SandboxInfo) bool { return s.ID == id }), err
}
