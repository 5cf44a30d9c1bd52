package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// activeTurn is the query that the worker is at. Its fields are guarded by the
// session's mu, but for those that say otherwise.
type activeTurn struct {
	turn   *Turn                   // never changes
	cancel context.CancelCauseFunc // never changes
	taken  bool                    // the agent has begun with the prompt; the worker's alone
	// detached says that the query can go on without this program; the worker's alone.
	detached bool
	// stopped is why the query was stopped, if it was.
	stopped error
}

// stop ends the making of the sandbox, or has the environment interrupt the query. The
// caller holds the session's mu.
func (a *activeTurn) stop(cause error) {
	if a.stopped == nil {
		a.stopped = cause
	}
	a.cancel(cause)
}

// work runs the queries one after the other and alone makes and ends sandboxes.
func (s *AgentSession) work(ctx context.Context) {
	defer close(s.done)
	idle := time.NewTimer(time.Hour)
	defer idle.Stop()
	var left error // of sandboxes that could not be ended, for Close to return
	for {
		if ctx.Err() != nil {
			s.shutdown(context.WithoutCancel(ctx), left)
			return
		}
		if s.terminate(ctx) {
			continue
		}
		if qctx, a := s.next(ctx); a != nil {
			s.runTurn(qctx, a)
			continue
		}
		idle.Stop()
		live := s.live()
		var rest <-chan time.Time
		var died <-chan struct{}
		if live != nil {
			died = live.died
			if s.cfg.IdleTimeout > 0 {
				idle.Reset(s.cfg.IdleTimeout - time.Since(live.used))
				rest = idle.C
			}
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-died:
			// The error is an event; no caller waits for it.
			_ = s.endSandbox(ctx, reasonUnhealthy)
		case <-rest:
			left = errors.Join(left, s.endSandbox(ctx, reasonIdle))
		}
	}
}

// terminate ends the sandbox for those who asked for it, and reports whether
// there were any.
func (s *AgentSession) terminate(ctx context.Context) bool {
	s.mu.Lock()
	waiting := s.terminations
	s.terminations = nil
	s.mu.Unlock()
	if len(waiting) == 0 {
		return false
	}
	err := s.endSandbox(ctx, reasonManual)
	for _, reply := range waiting {
		reply <- err
	}
	return true
}

// next takes the next prompt out of the queue and makes it the active one.
func (s *AgentSession) next(ctx context.Context) (context.Context, *activeTurn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 || len(s.terminations) > 0 || s.closing || s.broken != nil {
		return nil, nil
	}
	qctx, cancel := context.WithCancelCause(ctx)
	s.active = &activeTurn{turn: s.queue[0], cancel: cancel, taken: s.queue[0].begun}
	s.queue = s.queue[1:]
	return qctx, s.active
}

// runTurn takes one query from the queue to its last event.
func (s *AgentSession) runTurn(ctx context.Context, a *activeTurn) {
	defer a.cancel(nil)
	s.note(ctx, statusRunning)
	live, last, err := s.attempt(ctx, a)
	if live != nil && gone(err) && !a.taken && !s.isStopped(a) {
		// The sandbox had ended since the last query, and the agent has not
		// seen the prompt.
		_ = s.endSandbox(ctx, reasonUnhealthy)
		live, last, err = s.attempt(ctx, a)
	}
	if last == nil && s.letsGo(a) {
		s.leaveTurn(a, err)
		return
	}
	s.conclude(context.WithoutCancel(ctx), a, live, last, err)
}

// attempt gives the prompt to the agent and stores what it says. It returns the
// query's last event, which is not stored yet, if there was one.
func (s *AgentSession) attempt(ctx context.Context, a *activeTurn) (*liveSandbox, *runnerscripts.Event, error) {
	live, err := s.ensureSandbox(ctx)
	if err != nil {
		return nil, nil, err
	}
	last, err := s.execute(ctx, a, live)
	if last == nil || !s.isStopped(a) {
		err = live.explain(context.WithoutCancel(ctx), err)
	}
	return live, last, err
}

func (s *AgentSession) isStopped(a *activeTurn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.stopped != nil || s.closing
}

func (s *AgentSession) execute(ctx context.Context, a *activeTurn, live *liveSandbox) (last *runnerscripts.Event, err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	a.detached = s.durable && live.Durable()
	ctx, release := s.executing(ctx, a, live)
	defer release()
	if s.cfg.CheckpointInterval > 0 {
		saving, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { s.periodically(saving, live) })
		defer func() { stop(); wg.Wait() }()
	}
	told := false
	q := environment.Query{Prompt: a.turn.prompt, ID: a.turn.id, After: a.turn.index, Detach: a.detached}
	for ev, err := range live.ExecuteQuery(ctx, q) {
		if err != nil {
			return last, err
		}
		if a.detached && !told && s.isInterrupted(a) {
			told = true
			_ = live.Interrupt(ctx) // the first one may have come before the query began
		}
		if s.repeats(a.turn, ev) {
			continue
		}
		a.turn.failure.Add(ev)
		a.turn.index = max(a.turn.index, ev.Index)
		if endOf(a.turn.id, ev) {
			last = &ev
			continue
		}
		if ev.QueryID == a.turn.id && ev.Type == runnerscripts.TypeQueryStarted {
			a.taken = true
		}
		if err := s.append(ctx, ev); err != nil {
			return last, err
		}
	}
	return last, nil
}

// conclude stores what the agent remembers, then the query's last event, and
// makes room for the next one.
func (s *AgentSession) conclude(
	ctx context.Context, a *activeTurn, live *liveSandbox, last *runnerscripts.Event, err error,
) {
	s.mu.Lock()
	stopped := a.stopped
	if stopped == nil && s.closing {
		stopped = errInterrupted
	}
	s.mu.Unlock()
	s.saving.Lock() // to the end of the query, so that its checkpoint follows it
	dead := live != nil && (live.isDead() || gone(err))
	var events, saved []runnerscripts.Event
	if live != nil && !dead {
		live.queryID, live.prompt = a.turn.id, a.turn.prompt
		var saveErr error
		completed := "" // the prompt that the agent should remember
		if ranToEnd(last) {
			completed = a.turn.prompt
		}
		if events, saveErr = s.saveTranscript(ctx, live, completed); gone(saveErr) {
			// An agent whose sandbox is ended may have said goodbye.
			dead, err = true, errors.Join(err, saveErr)
		} else {
			saved = s.checkpointEvents(ctx, live, runnerscripts.CheckpointQuery)
		}
	}
	if dead && !ranToEnd(last) {
		stopped, last = errUnhealthy, nil
		if !gone(err) {
			err = errors.Join(errUnhealthy, err)
		}
	}
	end, result, err := ending(a.turn, last, stopped, err)
	events = append(append(events, end), saved...)
	if appendErr := s.append(ctx, events...); appendErr != nil {
		err = appendErr
	}
	s.saving.Unlock()
	s.mu.Lock()
	s.active, s.quiet = nil, time.Now()
	waiting := len(s.queue)
	s.mu.Unlock()
	if live != nil {
		live.used = time.Now()
	}
	if dead {
		_ = s.endSandbox(ctx, reasonUnhealthy)
	}
	s.lookForUnfinished(ctx)
	s.note(ctx, s.statusNow())
	if waiting == 0 {
		_ = s.append(ctx, event(runnerscripts.TypeSessionIdle, "", struct{}{}))
	}
	a.turn.finish(result, err)
}

// ranToEnd reports whether the agent finished the query, rather than being cut off.
func ranToEnd(last *runnerscripts.Event) bool {
	if last == nil || last.Type != runnerscripts.TypeQueryCompleted {
		return false
	}
	done, ok := decode[runnerscripts.QueryCompleted](*last)
	return ok && done.StopReason != runnerscripts.StopCancelled
}

// ending returns the event that ends a query, and what its turn returns.
func ending(
	t *Turn, last *runnerscripts.Event, stopped, err error,
) (runnerscripts.Event, runnerscripts.QueryCompleted, error) {
	var done runnerscripts.QueryCompleted
	if last != nil && last.Type == runnerscripts.TypeQueryCompleted {
		done, _ = decode[runnerscripts.QueryCompleted](*last)
		return *last, done, nil
	}
	failed := failure(err)
	if last != nil {
		failed, _ = decode[runnerscripts.QueryFailed](*last)
	}
	// A query that was stopped may end in any way; what counts is that it was
	// stopped.
	if stopped != nil && !errors.Is(stopped, errUnhealthy) {
		done = runnerscripts.QueryCompleted{
			StopReason: runnerscripts.StopCancelled, DurationMS: failed.DurationMS, Usage: failed.Usage,
		}
		return event(runnerscripts.TypeQueryCompleted, t.id, done), done, nil
	}
	if last == nil {
		ev := event(runnerscripts.TypeQueryFailed, t.id, failed)
		last = &ev
	}
	return *last, done, &QueryError{QueryID: t.id, Failure: failed, Err: err}
}

// shutdown ends everything when the session is closed. left is what could not be
// ended before.
func (s *AgentSession) shutdown(ctx context.Context, left error) {
	s.promptMu.Lock() // no prompt is between being accepted and being queued
	s.mu.Lock()
	s.closing = true
	queued := s.queue
	s.queue = nil
	s.mu.Unlock()
	s.promptMu.Unlock()
	for _, t := range queued {
		if s.staysOpen() {
			t.finish(runnerscripts.QueryCompleted{}, ErrClosed)
			continue
		}
		s.drop(ctx, t)
	}
	var err error
	if s.staysOpen() {
		err = s.leaveSandbox()
	} else {
		err = s.endSandbox(ctx, reasonManual)
	}
	s.lookForUnfinished(ctx)
	s.note(ctx, s.statusNow())
	s.err = errors.Join(left, err, s.unlock())
	s.log.Info("session closed")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, reply := range s.terminations {
		reply <- err
	}
	s.terminations = nil
	s.ended = true
	if s.err == nil {
		s.err = s.broken
	}
	s.grown()
}

// drop ends a prompt that was not begun.
func (s *AgentSession) drop(ctx context.Context, t *Turn) {
	done := runnerscripts.QueryCompleted{StopReason: runnerscripts.StopCancelled}
	err := s.append(ctx, event(runnerscripts.TypeQueryCompleted, t.id, done))
	t.finish(done, err)
}
