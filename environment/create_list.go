package environment

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	// Name is what Modal knows it by besides its ID; empty for none. [Attach] and
	// [Remove] take it, too.
	Name string `json:"name,omitempty"`
}

// SandboxTypes returns the types that [Create] knows, sorted.
func SandboxTypes() []string { return slices.Sorted(maps.Keys(backends())) }

// InstalledTypes returns the types that this machine is set up for, sorted: not
// "docker" where neither the configuration of the docker command nor a socket
// says that there is an engine, nor "modal" without credentials. It contacts
// nobody, so what is there may still not answer.
func InstalledTypes() []string {
	all := backends()
	return slices.DeleteFunc(SandboxTypes(), func(name string) bool {
		b := all[name]
		return b.present != nil && !b.present(Sandbox{Type: name})
	})
}

// List returns the sandboxes of a type that were made by this user and still
// live, oldest first. Those that could be listed come with the error of others.
func List(ctx context.Context, s Sandbox) ([]SandboxInfo, error) {
	b, err := s.backend()
	if err != nil {
		return nil, err
	}
	list, err := b.list(ctx, s)
	if err != nil {
		err = fmt.Errorf("list the sandboxes: %w", err)
	}
	return list, err
}
