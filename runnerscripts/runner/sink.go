package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/runnerscripts/runner/internal/handoff"
)

// maxPayload limits the payload of an event, in bytes, so that hosts read its line.
const maxPayload = runnerscripts.DefaultMaxLine - 64<<10

// sink writes events to standard output. It implements agent.Sink. An event that is too long, or cannot be written, ends the
// script's work.
type sink struct {
	enc     *runnerscripts.Encoder
	session string
	source  runnerscripts.Source
	// broken ends the script's work after the first error, such as that the output has no reader any more.
	broken context.CancelCauseFunc
	// admit is called with the payload of every driver event before it is written. It returns the
	// query that the event belongs to, and whether to write the event. If admit is nil, all events
	// are written, without a query.
	admit func(payload any) (query string, ok bool)

	// order is held from the decision to write an event until it is written.
	order sync.Mutex

	mu  sync.Mutex
	err error
}

// Emit reports an event that happened now.
func (s *sink) Emit(conversation string, typ runnerscripts.EventType, payload any) {
	s.EmitAt(time.Now(), conversation, typ, payload)
}

// EmitAt reports an event that happened at another time.
func (s *sink) EmitAt(at time.Time, conversation string, typ runnerscripts.EventType, payload any) {
	payload = handoff.WithoutPreface(typ, payload)
	s.order.Lock()
	defer s.order.Unlock()
	query := ""
	if s.admit != nil {
		var ok bool
		if query, ok = s.admit(payload); !ok {
			return
		}
	}
	s.write(at, conversation, query, typ, payload)
}

// Err returns the first write error.
func (s *sink) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *sink) write(at time.Time, conversation, query string, typ runnerscripts.EventType, payload any) {
	if conversation == "" {
		conversation = runnerscripts.MainConversation
	}
	raw, err := marshal(payload)
	if err == nil && len(raw) > maxPayload {
		err = fmt.Errorf("%w: it has %d bytes as JSON, and %d are the most; print less at once", primitives.ErrLimit, len(raw), maxPayload)
	}
	if err == nil {
		err = s.enc.Encode(runnerscripts.Event{
			Type: typ, Payload: raw, SessionID: s.session, ConversationID: conversation,
			QueryID: query, Source: s.source, Time: at.UTC(),
		})
	}
	if err != nil {
		s.fail(fmt.Errorf("writing the event %s: %w", typ, err))
	}
}

func (s *sink) fail(err error) {
	s.mu.Lock()
	first := s.err == nil
	if first {
		s.err = err
	}
	s.mu.Unlock()
	if first && s.broken != nil {
		s.broken(err)
	}
}
