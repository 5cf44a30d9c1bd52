package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// A durable session keeps its sandbox when the program detaches or dies. The next program
// continues: the log says which prompts were accepted and how far the query was, and the
// sandbox has the agent's output since then.

// Turns returns the running and queued queries, in order. After [Open] these are the queries of
// the earlier program.
func (s *AgentSession) Turns() []*Turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var turns []*Turn
	if s.active != nil {
		turns = append(turns, s.active.turn)
	}
	return append(turns, s.queue...)
}

// readopt continues with the sandbox of an earlier program and, in a durable session, with its
// queries.
func (s *AgentSession) readopt(ctx context.Context) error {
	if !s.durable {
		return s.readoptOrphan(ctx)
	}
	sb, err := s.reattach(ctx)
	if err != nil {
		return err
	}
	open := s.state.Queued
	asked := slices.Clone(s.state.hostRequests)
	for _, id := range asked { // requests of the earlier program itself: no caller waits for them
		if err := s.append(ctx, event(runnerscripts.TypePermissionResolved, "", runnerscripts.PermissionResolved{ID: id, Reason: runnerscripts.ReasonCancelled})); err != nil {
			return err
		}
	}
	if sb == nil {
		left := s.state
		left.Queued = nil // queued prompts run in a new sandbox
		if err := s.append(ctx, leftovers(left, reasonExpired, lost)...); err != nil {
			return err
		}
	} else {
		if q := s.state.Query; q != nil {
			s.queue = append(s.queue, s.reopen(*q, true))
			s.awaitRequests()
		}
		if err := s.setSandbox(ctx, sb, runnerscripts.TypeEnvironmentHealth, adopted); err != nil {
			return errors.Join(err, sb.Close())
		}
	}
	for _, q := range open {
		s.queue = append(s.queue, s.reopen(q, false))
	}
	s.signal()
	return nil
}

// readoptOrphan continues with the sandbox of a program that died, if that is in its grace period.
// The queries of that program have ended with it.
func (s *AgentSession) readoptOrphan(ctx context.Context) error {
	var sb sandbox
	if s.state.Environment.Status == EnvironmentReady {
		var err error
		if sb, err = s.reattach(ctx); err != nil {
			s.log.Warn("the orphaned sandbox of the session cannot be used; it goes on in a new one", eventlog.Error, err)
		}
	}
	left := s.state
	if sb != nil {
		left.Environment = EnvironmentState{}
	}
	err := s.append(ctx, leftovers(left, reasonExpired, lost)...)
	if sb == nil {
		return err
	}
	if err == nil {
		err = s.setSandbox(ctx, sb, runnerscripts.TypeEnvironmentHealth, adopted)
	}
	if err != nil {
		return errors.Join(err, sb.Close())
	}
	return nil
}

// adopted is the message of the event for the sandbox of an earlier program.
const adopted = "another program has attached to the sandbox"

// reopen returns a turn for a query of an earlier program.
func (s *AgentSession) reopen(q QueryState, begun bool) *Turn {
	return &Turn{
		session: s, id: q.ID, prompt: q.Prompt, attachments: q.Attachments, schema: q.OutputSchema, seq: q.Seq, index: q.Index, begun: begun, reopened: true, done: make(chan struct{}),
	}
}

// awaitRequests makes Respond wait until the sandbox reports its pending requests again.
func (s *AgentSession) awaitRequests() {
	if s.cfg.Environment.OnPermission == nil {
		return // the environment rejects them
	}
	s.reopening = make(map[string]chan struct{})
	for _, p := range s.state.Pending {
		s.reopening[p.ID] = make(chan struct{})
	}
}

// reopens returns a channel that is closed when a pending request of an earlier program can be
// answered or has ended; nil if that has already happened, or the request is not from an
// earlier program.
func (s *AgentSession) reopens(id string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reopening[id]
}

// reopenedLocked wakes the Respond calls that wait for requests that have ended. The caller
// holds mu.
func (s *AgentSession) reopenedLocked() {
	for id, opened := range s.reopening {
		if !slices.ContainsFunc(s.state.Pending, func(p runnerscripts.PermissionRequest) bool { return p.ID == id }) {
			close(opened)
			delete(s.reopening, id)
		}
	}
}

// opening wraps a permission callback so that it marks its request as ready for an answer.
func (s *AgentSession) opening(
	on func(context.Context, environment.PermissionRequest) environment.PermissionDecision,
) func(context.Context, environment.PermissionRequest) environment.PermissionDecision {
	if on == nil || !s.durable {
		return on
	}
	return func(ctx context.Context, req environment.PermissionRequest) environment.PermissionDecision {
		s.mu.Lock()
		if opened := s.reopening[req.ID]; opened != nil {
			close(opened)
			delete(s.reopening, req.ID)
		}
		s.mu.Unlock()
		return on(ctx, req)
	}
}

// reattach returns the sandbox of an earlier program; nil if there is none.
func (s *AgentSession) reattach(ctx context.Context) (sandbox, error) {
	cfg := s.environmentConfig(&beginning{})
	switch s.state.Environment.Status {
	case EnvironmentReady:
	case EnvironmentCreating:
		s.unfinished = s.state.Environment.creating
		return nil, s.removeUnfinished(ctx)
	default:
		return nil, nil
	}
	cfg.Session.Used = environment.Used{} // this machine has recorded the usage of the sandbox
	env, err := environment.Attach(ctx, cfg, s.state.Environment.ID)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !errors.Is(err, environment.ErrConfig), errors.Is(err, primitives.ErrTerminated):
		s.log.Info("the sandbox of the session has gone", "error", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("go on with the sandbox: %w", err)
	}
	return environmentSandbox{env, nil}, nil
}

// removeUnfinished ends an orphaned sandbox: its program died while it created the sandbox,
// before the sandbox got a prompt. An engine may finish it later, so the session looks for it
// again after the first query.
func (s *AgentSession) removeUnfinished(ctx context.Context) error {
	box, present := s.cfg.Environment.Sandbox, ""
	s.mu.Lock()
	if e := s.state.Environment; e.Status == EnvironmentReady {
		present = e.ID
	}
	s.mu.Unlock()
	made, err := environment.List(ctx, box)
	if err != nil {
		return fmt.Errorf("look for the sandbox that was being made: %w", err)
	}
	for _, info := range made {
		// Copies of this session's sandbox may carry its ID, but are older. Engines report times
		// in seconds.
		if info.SessionID != s.id || info.ID == present || info.Created.Before(s.unfinished.Add(-time.Second)) {
			continue
		}
		if err := environment.Remove(ctx, box, info.ID); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("end the sandbox that was being made: %w", err)
		}
	}
	return nil
}

// lookForUnfinished ends an orphaned sandbox that the engine finished late; see
// removeUnfinished.
func (s *AgentSession) lookForUnfinished(ctx context.Context) {
	if s.unfinished.IsZero() {
		return
	}
	if err := s.removeUnfinished(ctx); err != nil {
		s.log.Warn("a sandbox may be left that another program was making when it died", eventlog.Error, err)
	}
	s.unfinished = time.Time{}
}

// repeats reports whether an event of a continued query is already stored: the environment
// reports the end of a permission request again. before are the events of the query that are
// stored next.
func (s *AgentSession) repeats(t *Turn, before []runnerscripts.Event, ev runnerscripts.Event) bool {
	if !t.reopened || ev.Type != runnerscripts.TypePermissionResolved {
		return false
	}
	p, ok := decode[runnerscripts.PermissionResolved](ev)
	asks := func(ev runnerscripts.Event) bool {
		asked, _ := decode[runnerscripts.PermissionRequest](ev)
		return ev.Type == runnerscripts.TypePermissionRequest && asked.ID == p.ID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok && !slices.ContainsFunc(before, asks) &&
		!slices.ContainsFunc(s.state.Pending, func(open runnerscripts.PermissionRequest) bool { return open.ID == p.ID })
}

// executing returns the context of a query in a sandbox. In a durable session it ends when the
// session detaches from the query; an interrupt does not end it.
func (s *AgentSession) executing(ctx context.Context, a *activeTurn, live *liveSandbox) (context.Context, func()) {
	if !a.detached {
		return ctx, func() {}
	}
	query, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if s.isInterrupted(a) {
			_ = live.Interrupt(query) // the end of the query says whether it was interrupted
			return
		}
		cancel(context.Cause(ctx))
	})
	return query, func() { stop(); cancel(nil) }
}

func (s *AgentSession) isInterrupted(a *activeTurn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(a.stopped, errInterrupted) && !s.destroy
}

// staysOpen reports whether the session closes without ending its query and sandbox.
func (s *AgentSession) staysOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durable && s.closing && !s.destroy
}

// detachesFrom reports whether an unfinished query continues without this program.
func (s *AgentSession) detachesFrom(a *activeTurn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (a.detached || s.durable && !a.sent) && s.closing && !s.destroy && a.stopped == nil
}

// detachTurn detaches from a query. It stores nothing, because the query has not ended.
func (s *AgentSession) detachTurn(a *activeTurn, err error) {
	s.mu.Lock()
	s.active = nil
	broken := s.broken
	s.mu.Unlock()
	if broken == nil {
		err = ErrClosed
	}
	a.turn.finish(runnerscripts.QueryCompleted{}, err)
}

// detachSandbox detaches from the sandbox.
func (s *AgentSession) detachSandbox() error {
	s.mu.Lock()
	live := s.sandbox
	s.sandbox = nil
	s.mu.Unlock()
	if live == nil {
		return nil
	}
	live.cancel()
	live.wg.Wait()
	return live.Close()
}
