package local

import (
	"context"
	"errors"

	"github.com/agentenv-dev/agentenv/primitives"
)

// checkRunner says why there are no durable commands, or nil.
func checkRunner(path string) error { return errors.ErrUnsupported }

func (s *Sandbox) startDurable(ctx context.Context, cmd *primitives.Command) (primitives.Process, error) {
	return nil, errors.ErrUnsupported
}
