package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Why a permission request ended, as runnerscripts.PermissionResolved says it.
const (
	reasonAnswered  = "answered"
	reasonTimeout   = "timeout"
	reasonCancelled = "cancelled"
)

// permission is a request that waits for an answer. Whoever takes it out of
// AgentSession.pending is the one who answers it.
type permission struct {
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
	kind, err := decisionKind(p.req, d)
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
func (s *AgentSession) takeLocked(p *permission) {
	delete(s.pending, p.req.ID)
	p.cancel()
}

// decisionKind checks a decision against what the request offers and returns its
// kind.
func decisionKind(req runnerscripts.PermissionRequest, d runnerscripts.PermissionDecision) (runnerscripts.PermissionKind, error) {
	kind := d.Kind
	if d.OptionID != "" {
		i := slices.IndexFunc(req.Options, func(o runnerscripts.PermissionOption) bool { return o.OptionID == d.OptionID })
		if i < 0 {
			return "", fmt.Errorf("%w: request %q has no option %q", fs.ErrInvalid, req.ID, d.OptionID)
		}
		if offered := req.Options[i].Kind; kind != "" && kind != offered {
			return "", fmt.Errorf("%w: option %q is %s, not %s", fs.ErrInvalid, d.OptionID, offered, kind)
		}
		kind = req.Options[i].Kind
	}
	switch kind {
	case runnerscripts.AllowOnce, runnerscripts.AllowAlways, runnerscripts.RejectOnce, runnerscripts.RejectAlways:
	case "":
		return "", fmt.Errorf("%w: set OptionID or Kind of the decision", fs.ErrInvalid)
	default:
		return "", fmt.Errorf("%w: %q is no kind of decision; use %s, %s, %s or %s", fs.ErrInvalid, kind,
			runnerscripts.AllowOnce, runnerscripts.AllowAlways, runnerscripts.RejectOnce, runnerscripts.RejectAlways)
	}
	if d.OptionID == "" && kind.Allows() && !offers(req, kind) {
		return "", fmt.Errorf("%w: request %q does not offer %s", fs.ErrInvalid, req.ID, kind)
	}
	if len(d.UpdatedInput) > 0 && !kind.Allows() {
		return "", fmt.Errorf("%w: UpdatedInput goes with an allowing decision only", fs.ErrInvalid)
	}
	return kind, nil
}

func offers(req runnerscripts.PermissionRequest, kind runnerscripts.PermissionKind) bool {
	return len(req.Options) == 0 || slices.ContainsFunc(req.Options, func(o runnerscripts.PermissionOption) bool { return o.Kind == kind })
}

// ask stores a request, and waits for its answer beside the query.
func (s *AgentSession) ask(ctx context.Context, live *liveSandbox, ev runnerscripts.Event) error {
	req, ok := decode[runnerscripts.PermissionRequest](ev)
	if !ok || req.ID == "" {
		// Nobody could answer it. It is kept for who can make sense of it.
		return s.append(ctx, ev)
	}
	waiting, cancel := s.waiting(ctx)
	p := &permission{req: req, queryID: ev.QueryID, live: live, stored: make(chan struct{}), cancel: cancel}
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
	if s.cfg.OnPermission != nil {
		live.asks.Go(func() { s.callBack(waiting, p) })
	}
	if s.cfg.PermissionTimeout >= 0 {
		live.asks.Go(func() { s.expire(waiting, p) })
	}
	return nil
}

// waiting returns the context in which a request waits for its answer.
func (s *AgentSession) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.cfg.PermissionTimeout < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, s.cfg.PermissionTimeout, errUnanswered)
}

// errUnanswered is why nobody waits any more for an answer that did not come in time.
var errUnanswered = errors.New("nobody answered in time")

// callBack lets the application decide.
func (s *AgentSession) callBack(ctx context.Context, p *permission) {
	d := s.cfg.OnPermission(ctx, p.req)
	if ctx.Err() == nil && (d.OptionID != "" || d.Kind != "") {
		s.decided(ctx, p, d, reasonAnswered)
	}
}

// expire rejects a request that nobody answers in time, even if the application's
// callback does not return. It returns when the request is answered or withdrawn.
func (s *AgentSession) expire(ctx context.Context, p *permission) {
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), errUnanswered) {
		s.decided(ctx, p, reject(p.req, fmt.Sprintf("nobody answered within %v", s.cfg.PermissionTimeout)), reasonTimeout)
	}
}

// decided answers with a decision of the session's own. If it was answered
// meanwhile that is fine; anything else that fails is told in an event, because
// nobody waits for it here.
func (s *AgentSession) decided(ctx context.Context, p *permission, d runnerscripts.PermissionDecision, reason string) {
	ctx = context.WithoutCancel(ctx)
	err := s.answer(ctx, p.req.ID, d, reason)
	if err == nil || errors.Is(err, ErrNotPending) || gone(err) {
		return
	}
	_ = s.append(ctx, event(runnerscripts.TypeError, p.queryID, runnerscripts.ErrorInfo{
		Code: failure(err).Code, Message: fmt.Sprintf("the decision about %q had no effect: %v", p.req.ID, err),
	}))
}

// reject returns the weakest rejection that a request offers.
func reject(req runnerscripts.PermissionRequest, message string) runnerscripts.PermissionDecision {
	for _, kind := range []runnerscripts.PermissionKind{runnerscripts.RejectOnce, runnerscripts.RejectAlways} {
		for _, o := range req.Options {
			if o.Kind == kind {
				return runnerscripts.PermissionDecision{OptionID: o.OptionID, Kind: kind, Message: message}
			}
		}
	}
	return runnerscripts.PermissionDecision{Kind: runnerscripts.RejectOnce, Message: message}
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
