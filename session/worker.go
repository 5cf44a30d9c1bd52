package session

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// activeTurn is the query that the worker runs. The session's mu guards its fields unless
// noted.
type activeTurn struct {
	turn   *Turn                   // never changes
	cancel context.CancelCauseFunc // never changes
	taken  bool                    // the agent has started on the prompt; used by the worker only
	// sent says that the query was passed to the sandbox, or looked for there, and detached that it can continue without this
	// program; used by the worker only.
	sent, detached bool
	// stopped is why the query was stopped, if it was.
	stopped error
}

// stop cancels the creation of the sandbox, or makes the environment interrupt the query. The
// caller holds the session's mu.
func (a *activeTurn) stop(cause error) {
	if a.stopped == nil {
		a.stopped = cause
	}
	a.cancel(cause)
}

// work runs the queries one at a time. It is the only creator and terminator of sandboxes.
func (s *AgentSession) work(ctx context.Context) {
	defer close(s.done)
	idle := time.NewTimer(time.Hour)
	defer idle.Stop()
	var left error // errors of ending earlier sandboxes, for Close
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

// terminate ends the sandbox for the callers of TerminateEnvironment, and reports whether there
// were any.
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

// runTurn runs one query to its last event.
func (s *AgentSession) runTurn(ctx context.Context, a *activeTurn) {
	defer a.cancel(nil)
	s.saveRecord(ctx, statusRunning)
	live, last, err := s.attempt(ctx, a)
	if live != nil && gone(err) && !a.taken && !s.isStopped(a) {
		// The sandbox ended after the last query, and the agent has not seen the prompt: try
		// again in a new one.
		_ = s.endSandbox(ctx, reasonUnhealthy)
		live, last, err = s.attempt(ctx, a)
	}
	if last == nil && s.detachesFrom(a) {
		s.detachTurn(a, err)
		return
	}
	s.conclude(context.WithoutCancel(ctx), a, live, last, err)
}

// attempt gives the prompt to the agent and stores its events. It returns the query's last
// event, if any, which is not stored yet.
func (s *AgentSession) attempt(ctx context.Context, a *activeTurn) (*liveSandbox, *runnerscripts.Event, error) {
	if err := s.cfg.Environment.CheckPrompt(a.turn.prompt); err != nil {
		return nil, nil, err // before a sandbox is made for nothing
	}
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
	a.sent, a.detached = true, s.durable && live.Durable()
	ctx, release := s.executing(ctx, a, live)
	defer release()
	if s.cfg.CheckpointInterval > 0 {
		saving, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { s.periodically(saving, live) })
		defer func() { stop(); wg.Wait() }()
	}
	told := false
	attachments, err := s.readAttachments(ctx, a.turn.attachments)
	if err != nil {
		return nil, err
	}
	q := environment.Query{
		Prompt: a.turn.prompt, Attachments: attachments, OutputSchema: a.turn.schema, ID: a.turn.id, After: a.turn.index, Detach: a.detached,
	}
	query := func(ctx context.Context) iter.Seq2[runnerscripts.Event, error] { return live.ExecuteQuery(ctx, q) }
	for events, err := range ready(ctx, query) {
		if a.detached && !told && s.isInterrupted(a) {
			told = true
			_ = live.Interrupt(ctx) // the first interrupt may have come before the query started
		}
		fresh := events[:0]
		for _, ev := range events {
			if s.repeats(a.turn, fresh, ev) {
				continue
			}
			a.turn.failure.Add(ev)
			a.turn.index = max(a.turn.index, ev.Index)
			if ev.QueryID == a.turn.id && ev.Type.EndsQuery() {
				last = &ev
				continue
			}
			if ev.QueryID == a.turn.id && ev.Type == runnerscripts.TypeQueryStarted {
				a.taken = true
			}
			fresh = append(fresh, ev)
		}
		if s.isLimited(a) {
			fresh = slices.DeleteFunc(fresh, dropped)
		}
		if err := s.append(ctx, fresh...); err != nil {
			return last, err
		}
		if err != nil {
			return last, err
		}
	}
	return last, nil
}

// conclude stores the transcript, then the query's last event, and clears the active turn.
func (s *AgentSession) conclude(
	ctx context.Context, a *activeTurn, live *liveSandbox, last *runnerscripts.Event, err error,
) {
	s.mu.Lock()
	stopped := a.stopped
	if stopped == nil && s.closing {
		stopped = errInterrupted
	}
	s.mu.Unlock()
	s.saving.Lock() // until the query ends, so that its checkpoint follows
	dead := live != nil && (live.isDead() || gone(err))
	var events, saved []runnerscripts.Event
	if live != nil && !dead {
		live.queryID, live.prompt = a.turn.id, a.turn.prompt
		var saveErr error
		completed := "" // the prompt that the transcript must contain
		if ranToEnd(last) {
			completed = a.turn.prompt
		}
		if events, saveErr = s.saveTranscript(ctx, live, completed); gone(saveErr) {
			// An agent that is killed with its sandbox may still have reported an orderly end.
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
	if limit, ok := errors.AsType[limitError](stopped); ok && !ranToEnd(last) {
		last, err = limit.failed(a.turn, last), limit.error
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
	s.saveRecord(ctx, s.statusNow())
	if waiting == 0 {
		_ = s.append(ctx, event(runnerscripts.TypeSessionIdle, "", struct{}{}))
	}
	a.turn.finish(result, err)
}

// ranToEnd reports whether the agent itself finished the query.
func ranToEnd(last *runnerscripts.Event) bool {
	if last == nil || last.Type != runnerscripts.TypeQueryCompleted {
		return false
	}
	done, ok := decode[runnerscripts.QueryCompleted](*last)
	return ok && done.StopReason != runnerscripts.StopCancelled
}

// ending returns the last event of a query and the result of its turn.
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
	// A stopped query may end with any error; report that it was stopped.
	if _, limited := errors.AsType[limitError](stopped); stopped != nil && !limited && !errors.Is(stopped, errUnhealthy) {
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

// shutdown ends everything when the session closes. left is the error of sandboxes that could
// not be ended before.
func (s *AgentSession) shutdown(ctx context.Context, left error) {
	s.promptMu.Lock() // no prompt may be between acceptance and the queue
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
		err = s.detachSandbox()
	} else {
		err = s.endSandbox(ctx, reasonManual)
	}
	s.lookForUnfinished(ctx)
	s.saveRecord(ctx, s.statusNow())
	s.mu.Lock()
	destroy := s.destroy
	s.mu.Unlock()
	if s.err = errors.Join(left, err); !destroy { // else Destroy releases the lease, after the removal
		s.err = errors.Join(s.err, s.unlock())
	}
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
	s.wakeReadersLocked()
}

// drop ends a prompt that has not started.
func (s *AgentSession) drop(ctx context.Context, t *Turn) {
	err := s.append(ctx, cancelled(t.id))
	t.finish(runnerscripts.QueryCompleted{StopReason: runnerscripts.StopCancelled}, err)
}
