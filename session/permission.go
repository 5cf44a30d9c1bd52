package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Respond answers a permission request by its ID. The first answer wins: later answers, and
// answers to a withdrawn request, return [ErrNotPending]. A decision that is invalid or that
// the request does not offer returns fs.ErrInvalid, and the request stays pending.
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
			select { // the request is pending in the sandbox, and will be reported again
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
