package session

import (
	"context"
	"fmt"
	"slices"
)

// Interrupt stops the running query, which then completes with runnerscripts.StopCancelled, and
// withdraws its permission requests. Queued prompts stay. Interrupt does not wait for the end
// of the query. An agent that does not stop within 5 seconds
// (runnerscripts.DefaultInterruptGrace) is killed. Without a query Interrupt does nothing.
func (s *AgentSession) Interrupt(ctx context.Context) error {
	return s.interrupt(ctx, nil)
}

// interrupt stops one turn; nil means the current one.
func (s *AgentSession) interrupt(ctx context.Context, t *Turn) error {
	s.mu.Lock()
	if err := s.checkLocked(); err != nil {
		s.mu.Unlock()
		return fmt.Errorf("interrupt: %w", err)
	}
	if a := s.active; a != nil && (t == nil || t == a.turn) {
		a.stop(errInterrupted)
		s.mu.Unlock()
		return nil
	} else if a == nil && t == nil && len(s.queue) > 0 {
		t = s.queue[0]
	}
	i := slices.Index(s.queue, t)
	if i >= 0 {
		s.queue = slices.Delete(slices.Clone(s.queue), i, i+1)
	}
	s.mu.Unlock()
	if i >= 0 {
		s.drop(ctx, t)
	}
	return nil
}

// TerminateEnvironment interrupts the running query, stores the workspace and ends the sandbox.
// The session stays open: the next prompt, even a queued one, creates a new sandbox with the
// agent's memory restored. Without a sandbox it does nothing. If ctx is done it returns early,
// and the sandbox still ends.
func (s *AgentSession) TerminateEnvironment(ctx context.Context) error {
	reply := make(chan error, 1)
	s.mu.Lock()
	if err := s.checkLocked(); err != nil {
		s.mu.Unlock()
		return fmt.Errorf("terminate environment: %w", err)
	}
	s.terminations = append(s.terminations, reply)
	if s.active != nil {
		s.active.stop(errInterrupted)
	}
	s.mu.Unlock()
	s.signal()
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
