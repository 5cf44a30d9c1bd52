package local

import (
	"context"

	"github.com/agentenv-dev/agentenv/primitives"
)

// ReapOrphans does nothing on this system, whose process 1 reaps orphans.
func ReapOrphans() (end func()) { return func() {} }

// Examine finds nothing that a sandbox lacks.
func (p Provider) Examine(context.Context, primitives.Spec) []primitives.Finding { return nil }
