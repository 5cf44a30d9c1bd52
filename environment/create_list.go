package environment

import (
	"context"
	"fmt"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// SandboxInfo describes a sandbox that can be attached to.
type SandboxInfo struct {
	ID      string            `json:"id"`
	Type    string            `json:"type"`
	Status  primitives.Status `json:"status"`
	Created time.Time         `json:"created"`
	// InUse says that the program that made it still runs.
	InUse bool `json:"in_use"`
	// Image is what a container, or a sandbox at Modal, was made of; empty for
	// other types.
	Image string `json:"image,omitempty"`
	// Name is [Config].Name, or what Modal knows it by; empty for none.
	Name string `json:"name,omitempty"`
	// Kept says that it outlives its program.
	Kept bool `json:"kept"`
	// Orphan says that its program has died and that it was not to be kept: [GC]
	// removes it.
	Orphan bool `json:"orphan,omitempty"`
	// Ending says that a program ends it at the moment.
	Ending bool `json:"ending,omitempty"`
	// Agent is the agent that was chosen for it; empty for none. Agent, CostUSD and
	// the times of queries are known where this user made the sandbox on this machine.
	Agent string `json:"agent,omitempty"`
	// QueryBegan and QueryEnded are when the latest query of [Environment.ExecuteQuery]
	// did; the zero time is not yet. The end is not known of one whose program was
	// killed, see [Environment.Working].
	QueryBegan time.Time `json:"query_began,omitzero"`
	QueryEnded time.Time `json:"query_ended,omitzero"`
	// CostUSD is what its queries have cost, as far as the agent said.
	CostUSD float64 `json:"cost_usd,omitempty"`
}

// List returns the sandboxes of a type that were made by this user and still
// live, oldest first. Those that could be listed come with the error of others.
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
			Image: f.Image, Name: f.Name, Kept: f.Kept, Orphan: f.Orphan,
		})
	}
	if err != nil {
		err = fmt.Errorf("list the sandboxes: %w", err)
	}
	describeActivity(list)
	return list, err
}
