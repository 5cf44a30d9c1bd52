package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentenv-dev/agentenv/internal/permission"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Why a permission request ended, as runnerscripts.PermissionResolved says it.
const (
	reasonAnswered  = "answered"
	reasonTimeout   = "timeout"
	reasonCancelled = "cancelled"
)

// pending is a request that waits for an answer. Whoever takes it out of
// AgentSession.pending is the one who answers it.
type pending struct {
	req     runnerscripts.PermissionRequest
	queryID string
	live    *liveSandbox
	stored  chan struct{}      // closed when its event is stored
	cancel  context.CancelFunc // ends those who wait for an answer
}

// Respond answers a permission request by its ID. The first answer wins: later
// ones, and those to a request that was withdrawn, are [ErrNotPending]. A
// decision that the request does not offer, or that makes no sense, is
// fs.ErrInvalid, and the request goes on waiting.
func (s *AgentSession) Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("respond: %w", err)
	}
	if err := s.check(); err != nil {
		return fmt.Errorf("respond: %w", err)
	}
	if err := s.answer(ctx, id, d, reasonAnswered); err != nil {
		return fmt.Errorf("respond: %w", err)
	}
	return nil
}

// answer resolves a request, once, and tells the agent.
func (s *AgentSession) answer(ctx context.Context, id string, d runnerscripts.PermissionDecision, reason string) error {
	s.mu.Lock()
	p := s.pending[id]
	s.mu.Unlock()
	if p != nil {
		select {
		case <-p.stored: // the answer comes after the question, in the log too
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	if p == nil || s.pending[id] != p {
		s.mu.Unlock()
		return fmt.Errorf("%w: %q", ErrNotPending, id)
	}
	kind, err := permission.Check(p.req, d)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	s.takeLocked(p)
	s.mu.Unlock()
	err = s.append(ctx, event(runnerscripts.TypePermissionResolved, p.queryID,
		runnerscripts.PermissionResolved{ID: id, Kind: kind, Reason: reason}))
	if err != nil {
		return err
	}
	// The decision is made and written down; the agent has to hear of it even
	// if the one who made it has gone.
	return p.live.Respond(context.WithoutCancel(ctx), id, d)
}

// takeLocked makes the caller, who holds mu, the one who resolves the request.
func (s *AgentSession) takeLocked(p *pending) {
	delete(s.pending, p.req.ID)
	p.cancel()
}

// ask stores a request, and waits for its answer beside the query.
func (s *AgentSession) ask(ctx context.Context, live *liveSandbox, ev runnerscripts.Event) error {
	req, ok := decode[runnerscripts.PermissionRequest](ev)
	if !ok || req.ID == "" {
		// Nobody could answer it. It is kept for who can make sense of it.
		return s.append(ctx, ev)
	}
	policy := permission.Policy{On: s.cfg.Environment.OnPermission, Timeout: s.cfg.Environment.PermissionTimeout}
	waiting, cancel := policy.Waiting(ctx)
	p := &pending{req: req, queryID: ev.QueryID, live: live, stored: make(chan struct{}), cancel: cancel}
	// It can be answered from the moment that its event can be seen.
	s.mu.Lock()
	old := s.pending[req.ID]
	if old == nil {
		s.pending[req.ID] = p
	}
	s.mu.Unlock()
	err := s.append(ctx, ev)
	close(p.stored)
	if err != nil || old != nil {
		cancel() // with old it was repeated by the agent, and waits already
		return err
	}
	if policy.On == nil {
		s.decided(ctx, p, permission.Unset(req), reasonAnswered)
		return s.append(ctx, event(runnerscripts.TypeLog, p.queryID, runnerscripts.Log{Level: "warn", Message: permission.UnsetWarning}))
	}
	live.asks.Go(func() {
		if d, ok := policy.Decide(waiting, req); ok {
			s.decided(waiting, p, d, reasonAnswered)
		}
	})
	if policy.Timeout >= 0 {
		live.asks.Go(func() {
			if d, ok := policy.Expire(waiting, req); ok {
				s.decided(waiting, p, d, reasonTimeout)
			}
		})
	}
	return nil
}

// decided answers with a decision of the session's own. If it was answered
// meanwhile that is fine; anything else that fails is told in an event, because
// nobody waits for it here.
func (s *AgentSession) decided(ctx context.Context, p *pending, d runnerscripts.PermissionDecision, reason string) {
	ctx = context.WithoutCancel(ctx)
	err := s.answer(ctx, p.req.ID, d, reason)
	if err == nil || errors.Is(err, ErrNotPending) || gone(err) {
		return
	}
	_ = s.append(ctx, event(runnerscripts.TypeError, p.queryID, runnerscripts.ErrorInfo{
		Code: failure(err).Code, Message: fmt.Sprintf("the decision about %q had no effect: %v", p.req.ID, err),
	}))
}

// resolvedByAgent stores that the agent withdrew a request, whatever answer its
// event names: answers are the session's. What the session resolved itself it has
// told already.
func (s *AgentSession) resolvedByAgent(ctx context.Context, ev runnerscripts.Event) error {
	res, ok := decode[runnerscripts.PermissionResolved](ev)
	if ok {
		s.mu.Lock()
		p := s.pending[res.ID]
		if p != nil {
			s.takeLocked(p)
		}
		s.mu.Unlock()
		if p == nil {
			return nil
		}
		ev.Payload = event(ev.Type, "", runnerscripts.PermissionResolved{ID: res.ID, Reason: reasonCancelled}).Payload
	}
	return s.append(ctx, ev)
}

// withdraw ends all requests that wait, without an answer.
func (s *AgentSession) withdraw(ctx context.Context) {
	s.mu.Lock()
	var events []runnerscripts.Event
	for _, req := range s.state.Pending { // oldest first
		if p := s.pending[req.ID]; p != nil {
			s.takeLocked(p)
			events = append(events, event(runnerscripts.TypePermissionResolved, p.queryID,
				runnerscripts.PermissionResolved{ID: req.ID, Reason: reasonCancelled}))
		}
	}
	s.mu.Unlock()
	// If it fails the session is broken, and says so itself.
	_ = s.append(ctx, events...)
}
