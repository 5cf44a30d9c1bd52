package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"sync"
	"unsafe"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// DefaultMaxLog is how many bytes of the events of one session [Memory] holds: 256
// MiB.
const DefaultMaxLog = 256 << 20

// Memory is a [Store] in the memory of this program. It holds the latest events of
// every session until the session is deleted, and nothing survives the program.
// A session whose first events were dropped goes on, and cannot be opened again or
// forked.
// The zero value is not usable; see [NewMemory].
type Memory struct {
	// MaxLog is how many bytes of memory the events of one session take. With
	// more the oldest ones are dropped; the latest one stays. Zero means
	// DefaultMaxLog, a negative number any size. It is set before the first use.
	MaxLog int64

	emit func(runnerscripts.Event) error // of a stream, which keeps no events

	mu       sync.RWMutex
	sessions map[string]*memorySession
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{sessions: make(map[string]*memorySession)}
}

// NewStream returns a store that hands every event to emit, in order and one at a
// time, and keeps none of them. What the caller does with an event takes the session
// its time: a slow caller slows the sandbox. An error of emit is that of Append, and
// ends the session. emit must not call methods of the session.
func NewStream(emit func(runnerscripts.Event) error) *Memory {
	m := NewMemory()
	m.emit = emit
	return m
}

type memorySession struct {
	appending sync.Mutex // held by Append, and before mu

	mu     sync.RWMutex
	record Record
	// events are the latest ones, up to that of record.LastSeq.
	events []runnerscripts.Event
	size   int64 // of events, in bytes of memory
	parts  map[Part]memoryPart
}

type memoryPart struct {
	revision uint64
	data     []byte
}

// Create adds a session.
func (m *Memory) Create(ctx context.Context, r Record) error {
	if err := ctx.Err(); err != nil {
		return &Error{Op: "create", ID: r.ID, Err: err}
	}
	if r.ID == "" {
		return &Error{Op: "create", Err: fmt.Errorf("%w: the session has no ID; give it one", fs.ErrInvalid)}
	}
	r.LastSeq, r.UpdatedAt = 0, r.CreatedAt
	r.Metadata = maps.Clone(r.Metadata)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.sessions[r.ID]; ok {
		return &Error{Op: "create", ID: r.ID, Err: fs.ErrExist}
	}
	m.sessions[r.ID] = &memorySession{record: r, parts: make(map[Part]memoryPart)}
	return nil
}

// Load returns a session's record.
func (m *Memory) Load(ctx context.Context, id string) (Record, error) {
	s, err := m.session(ctx, "load", id)
	if err != nil {
		return Record{}, err
	}
	return s.snapshot(), nil
}

// List returns all records, the most recently updated first.
func (m *Memory) List(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		m.mu.RLock()
		all := slices.Collect(maps.Values(m.sessions))
		m.mu.RUnlock()
		records := make([]Record, len(all))
		for i, s := range all {
			records[i] = s.snapshot()
		}
		slices.SortFunc(records, func(a, b Record) int {
			if c := b.UpdatedAt.Compare(a.UpdatedAt); c != 0 {
				return c
			}
			return bytes.Compare([]byte(a.ID), []byte(b.ID))
		})
		for _, r := range records {
			if err := ctx.Err(); err != nil {
				yield(Record{}, &Error{Op: "list", Err: err})
				return
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// Delete removes a session.
func (m *Memory) Delete(ctx context.Context, id string) error {
	if _, err := m.session(ctx, "delete", id); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.sessions[id]; !ok {
		return &Error{Op: "delete", ID: id, Err: ErrNotFound}
	}
	delete(m.sessions, id)
	return nil
}

// Append adds events to the log of a session.
func (m *Memory) Append(ctx context.Context, id string, events ...runnerscripts.Event) error {
	s, err := m.session(ctx, "append", id)
	if err != nil {
		return err
	}
	s.appending.Lock()
	defer s.appending.Unlock()
	last := s.snapshot().LastSeq
	for i, ev := range events {
		if want := last + uint64(i) + 1; ev.Seq != want {
			return &Error{Op: "append", ID: id, Err: fmt.Errorf("%w: event %d where %d comes next", ErrConflict, ev.Seq, want)}
		}
	}
	if m.emit != nil {
		for _, ev := range events {
			if err := m.emit(ev); err != nil {
				return &Error{Op: "append", ID: id, Err: err}
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(events); n > 0 {
		s.record.LastSeq = events[n-1].Seq
		s.record.UpdatedAt = events[n-1].Time
	}
	if m.emit == nil {
		s.keep(events, m.MaxLog)
	}
	return nil
}

// keep adds events, and drops the oldest ones of more than limit bytes.
func (s *memorySession) keep(events []runnerscripts.Event, limit int64) {
	for _, ev := range events {
		ev.Payload = bytes.Clone(ev.Payload)
		s.events = append(s.events, ev)
		s.size += memoryOf(ev)
	}
	if limit == 0 {
		limit = DefaultMaxLog
	}
	drop := 0
	for limit > 0 && s.size > limit && drop < len(s.events)-1 {
		s.size -= memoryOf(s.events[drop])
		drop++
	}
	clear(s.events[:drop])
	s.events = s.events[drop:]
}

// memoryOf is how many bytes of memory an event takes.
func memoryOf(ev runnerscripts.Event) int64 {
	return int64(int(unsafe.Sizeof(ev)) + cap(ev.Payload) +
		len(ev.Type) + len(ev.SessionID) + len(ev.ConversationID) + len(ev.QueryID) + len(ev.Source))
}

// Events returns the log of a session.
func (m *Memory) Events(ctx context.Context, id string, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		s, err := m.session(ctx, "events", id)
		if err != nil {
			yield(runnerscripts.Event{}, err)
			return
		}
		last := s.snapshot().LastSeq
		for next := max(from, 1); next <= last; {
			some, err := s.some(next, last)
			for i := 0; i < len(some) && err == nil; i++ {
				if err = ctx.Err(); err == nil && !yield(some[i], nil) {
					return
				}
			}
			if err != nil {
				yield(runnerscripts.Event{}, &Error{Op: "events", ID: id, Err: err})
				return
			}
			next += uint64(len(some))
		}
	}
}

// readAhead is how many bytes of events a reader holds beside the next one, so that
// it does not keep what is dropped.
const readAhead = 64 << 10

// some returns events from one on, at least that one.
func (s *memorySession) some(from, last uint64) ([]runnerscripts.Event, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	first := s.record.LastSeq + 1 - uint64(len(s.events))
	if from < first {
		return nil, fmt.Errorf("%w: event %d; the first one that is left is %d", ErrDropped, from, first)
	}
	n, size := 1, int64(0)
	left := s.events[from-first : last+1-first]
	for n < len(left) && size+memoryOf(left[n]) <= readAhead {
		size += memoryOf(left[n])
		n++
	}
	return slices.Clone(left[:n]), nil
}

// Put replaces a part of a session.
func (m *Memory) Put(ctx context.Context, id string, part Part, revision uint64, r io.Reader) error {
	s, err := m.session(ctx, "put", id)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(r)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return &Error{Op: "put", ID: id, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.parts[part]; ok && old.revision > revision {
		return &Error{Op: "put", ID: id, Err: fmt.Errorf("%w: %s %d, not %d", ErrStale, part, old.revision, revision)}
	}
	s.parts[part] = memoryPart{revision: revision, data: data}
	return nil
}

// Get returns a part of a session.
func (m *Memory) Get(ctx context.Context, id string, part Part) (io.ReadCloser, uint64, error) {
	s, err := m.session(ctx, "get", id)
	if err != nil {
		return nil, 0, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.parts[part]
	if !ok {
		return nil, 0, &Error{Op: "get", ID: id, Err: fmt.Errorf("%w: no %s", fs.ErrNotExist, part)}
	}
	return io.NopCloser(bytes.NewReader(p.data)), p.revision, nil
}

func (m *Memory) session(ctx context.Context, op, id string) (*memorySession, error) {
	if err := ctx.Err(); err != nil {
		return nil, &Error{Op: op, ID: id, Err: err}
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	s, ok := m.sessions[id]
	if !ok {
		return nil, &Error{Op: op, ID: id, Err: ErrNotFound}
	}
	return s, nil
}

func (s *memorySession) snapshot() Record {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.record
	r.Metadata = maps.Clone(r.Metadata)
	return r
}
