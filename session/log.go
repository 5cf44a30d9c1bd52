package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"syscall"
	"time"

	"github.com/agentenv-dev/agentenv/internal/eventlog"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// event returns an event of the session. It needs no error: payloads are structs of plain
// fields, which always have a JSON form.
func event(typ runnerscripts.EventType, queryID string, payload any) runnerscripts.Event {
	data, err := json.Marshal(payload)
	if err != nil {
		data = json.RawMessage("{}")
	}
	return runnerscripts.Event{
		Type: typ, Payload: data, QueryID: queryID,
		Source: runnerscripts.SourceSession, Time: time.Now(),
	}
}

// append numbers events, stores them, and only then publishes them. After a failure it refuses
// further events: the log would have a gap.
func (s *AgentSession) append(ctx context.Context, events ...runnerscripts.Event) error {
	if len(events) == 0 {
		return nil
	}
	s.logMu.Lock()
	defer s.logMu.Unlock()
	err := s.appendLocked(ctx, events)
	for _, ev := range events {
		if err == nil && ev.Source == runnerscripts.SourceSession { // the environment logs other events
			eventlog.Write(s.log, ev)
		}
	}
	return err
}

// appendLocked is append for a caller that holds logMu.
func (s *AgentSession) appendLocked(ctx context.Context, events []runnerscripts.Event) error {
	s.mu.Lock()
	last, broken := s.state.LastSeq, s.broken
	s.mu.Unlock()
	if broken != nil {
		return broken
	}
	for i := range events {
		events[i].Seq = last + uint64(i) + 1
		events[i].SessionID = s.id
		if len(events[i].Payload) == 0 {
			events[i].Payload = json.RawMessage("{}")
		}
		if events[i].Time.IsZero() {
			events[i].Time = time.Now()
		}
	}
	// Record what has happened even if the caller's context is done.
	err := s.store.Append(context.WithoutCancel(ctx), s.id, events...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, syscall.ENOSPC) && len(events) == 1 && events[0].Type == runnerscripts.TypeQueryQueued {
		return err // only a prompt was refused
	}
	if err != nil {
		return s.breakLocked(err)
	}
	for _, ev := range events {
		s.state.apply(ev)
	}
	if a := s.active; a != nil {
		if err := s.state.over(s.cfg); err != nil {
			a.stop(limitError{err})
		}
	}
	s.reopenedLocked()
	s.wakeReadersLocked()
	return nil
}

// breakLocked ends a session whose events cannot be stored. The caller holds mu.
func (s *AgentSession) breakLocked(err error) error {
	s.log.Error("session cannot be stored and ends", eventlog.Error, err)
	s.broken = fmt.Errorf("session %s cannot go on, because its events cannot be stored: %w", s.id, err)
	s.closing = true // a query in a kept sandbox goes on without this program
	if s.cancel != nil {
		s.cancel()
	}
	s.wakeReadersLocked()
	return s.broken
}

// wakeReadersLocked wakes the readers of the log. The caller holds s.mu.
func (s *AgentSession) wakeReadersLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Events returns the session's events, from the one whose Seq is from (zero means the first),
// then those that happen from now on, without a gap and without repetition. A session that was
// opened again also has its earlier events.
//
// Each reader reads the store at its own pace: a slow reader delays neither the agent nor other
// readers, and misses no event that the store keeps. An event that the store has dropped is
// store.ErrDropped. The sequence ends without an error after the last event of a session that is
// closed meanwhile, and otherwise with the error of ctx or of the store. It may be used more
// than once, and each use by one goroutine at a time.
func (s *AgentSession) Events(ctx context.Context, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		if err := s.check(); err != nil {
			yield(runnerscripts.Event{}, err)
			return
		}
		s.follow(ctx, max(from, 1), yield)
	}
}

func (s *AgentSession) follow(ctx context.Context, next uint64, yield func(runnerscripts.Event, error) bool) {
	defer s.reading()()
	for {
		s.mu.Lock()
		last, ended, broken, changed := s.state.LastSeq, s.ended, s.broken, s.changed
		s.mu.Unlock()
		if next <= last {
			var ok bool
			if next, ok = s.replay(ctx, next, last, yield); !ok {
				return
			}
			continue
		}
		if ended || broken != nil {
			if broken != nil {
				yield(runnerscripts.Event{}, broken)
			}
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			yield(runnerscripts.Event{}, ctx.Err())
			return
		}
	}
}

// replay yields the stored events from next to last. It returns the Seq of the next event and
// whether to continue.
func (s *AgentSession) replay(
	ctx context.Context, next, last uint64, yield func(runnerscripts.Event, error) bool,
) (uint64, bool) {
	for ev, err := range s.store.Events(ctx, s.id, next) {
		if err == nil && ev.Seq != next {
			err = fmt.Errorf("event %d is missing in the store, which has %d instead", next, ev.Seq)
		}
		if err != nil {
			yield(runnerscripts.Event{}, err)
			return next, false
		}
		if ev.Seq > last {
			break // stored, but not part of the state yet
		}
		next++
		if !yield(ev, nil) {
			return next, false
		}
	}
	if next <= last {
		yield(runnerscripts.Event{}, &store.Error{Op: "events", ID: s.id, Err: fmt.Errorf("event %d is missing", next)})
		return next, false
	}
	return next, true
}
