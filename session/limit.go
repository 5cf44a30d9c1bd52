package session

import (
	"errors"
	"fmt"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// sizeOfEnvelope is about what a store needs for an event besides its payload.
const sizeOfEnvelope = 200

// count adds what an event takes in the store. Files count towards the session alone: a query is not ended for them.
func (s *State) count(ev runnerscripts.Event) {
	size := int64(sizeOfEnvelope + len(ev.Payload))
	s.Size += size
	if s.Query != nil {
		s.Query.Size += size
	}
	if c, ok := decode[runnerscripts.Checkpoint](ev); ok && ev.Type == runnerscripts.TypeCheckpoint {
		s.Size += max(c.Stored, 0)
	}
}

// over returns an error if the running query, or the session, has reached its size.
func (s *State) over(cfg Config) error {
	if most := cfg.MaxQuerySize; s.Query != nil && most > 0 && s.Query.Size >= most {
		return fmt.Errorf("%w: %d MiB of the query are stored, of at most %d; ask for less at once, or raise MaxQuerySize",
			primitives.ErrLimit, s.Query.Size>>20, most>>20)
	}
	return s.overall(cfg)
}

// overall returns an error if the session has reached its size.
func (s *State) overall(cfg Config) error {
	if most := cfg.MaxSessionSize; most > 0 && s.Size >= most {
		return fmt.Errorf("%w: %d MiB of the session are stored, of at most %d; go on in a new session, or raise MaxSessionSize",
			primitives.ErrLimit, s.Size>>20, most>>20)
	}
	return nil
}

// room returns how many bytes of files a checkpoint may add, so that it does not end the session; zero means any number.
func (s *AgentSession) room() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if most := s.cfg.MaxSessionSize; most > 0 {
		return max(most-s.state.Size, 1)
	}
	return 0
}

// limitError stops a query as an interrupt does, after which it fails with the error.
type limitError struct{ error }

func (l limitError) Unwrap() error { return l.error }

// Is makes it an interrupt for those who stop the query.
func (limitError) Is(target error) bool { return target == errInterrupted }

// failed returns the last event of a query that was stopped.
func (l limitError) failed(t *Turn, last *runnerscripts.Event) *runnerscripts.Event {
	failed := runnerscripts.QueryFailed{Code: runnerscripts.FailLimit, Message: l.Error()}
	if last != nil { // both ends of a query have these
		end, _ := decode[runnerscripts.QueryCompleted](*last)
		failed.DurationMS, failed.Usage = end.DurationMS, end.Usage
	}
	ev := event(runnerscripts.TypeQueryFailed, t.id, failed)
	return &ev
}

func (s *AgentSession) isLimited(a *activeTurn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := errors.AsType[limitError](a.stopped)
	return ok
}

// dropped reports whether an event is not stored once a query has reached its limit: all but the
// ends of permission requests.
func dropped(ev runnerscripts.Event) bool { return ev.Type != runnerscripts.TypePermissionResolved }
