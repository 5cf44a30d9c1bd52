package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Respond answers a permission request by its ID. The first answer wins: later
// ones, and those to a request that was withdrawn, are [ErrNotPending]. A
// decision that the request does not offer, or that makes no sense, is
// fs.ErrInvalid, and the request goes on waiting.
func (s *AgentSession) Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	if err := s.check(); err != nil {
		return fmt.Errorf("respond: %w", err)
	}
	opened := s.reopens(id)
	for {
		live := s.live()
		if live == nil {
			return fmt.Errorf("respond: %w: %q", ErrNotPending, id)
		}
		err := live.Respond(ctx, id, d)
		none := errors.Is(err, environment.ErrNoQuery) || errors.Is(err, environment.ErrClosed)
		if opened != nil && (none || errors.Is(err, ErrNotPending)) {
			select { // it waits in the sandbox, and is about to be found there
			case <-opened:
			case <-s.done:
			case <-ctx.Done():
				return fmt.Errorf("respond: %w", context.Cause(ctx))
			}
			opened = nil
			continue
		}
		if none {
			return fmt.Errorf("respond: %w: %q", ErrNotPending, id)
		}
		return err
	}
}
