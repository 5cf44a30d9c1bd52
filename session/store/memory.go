package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// DefaultMaxLog is how many bytes of events [Memory] holds for one session: 256 MiB.
const DefaultMaxLog = 256 << 20

// Memory is a [Store] in memory. It holds the latest events of every session until the session
// is deleted; nothing survives the program. A session whose first events were dropped
// continues, but cannot be opened again or forked. The zero value is not usable; see
// [NewMemory].
type Memory struct {
	// MaxLog bounds the memory for the events of one session, in bytes. Above it the oldest
	// events are dropped; the latest event always stays. Zero means DefaultMaxLog, a negative
	// number no bound. Set it before the first use.
	MaxLog int64

	emit func(runnerscripts.Event) error // of a stream, which keeps no events

	clock atomic.Uint64 // counts changes of the logs, to order List

	mu       sync.RWMutex
	sessions map[string]*memorySession
	blobs    map[Digest]*memoryBlob
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{sessions: make(map[string]*memorySession), blobs: make(map[Digest]*memoryBlob)}
}

// NewStream returns a store that passes every event to emit, in order and one at a time, and
// keeps no events. A slow emit slows the session and its sandbox. An error of emit is returned
// by Append and ends the session. emit must not call methods of the session.
func NewStream(emit func(runnerscripts.Event) error) *Memory {
	m := NewMemory()
	m.emit = emit
	return m
}

type memorySession struct {
	appending sync.Mutex // held by Append; lock it before mu

	blobs  map[Digest]uint64 // with the session's LastSeq when it was put; guarded by the store's mu
	locked atomic.Bool

	mu     sync.RWMutex
	record Record
	stored uint64 // value of the store's clock when the last event was stored
	// events are the latest events, up to record.LastSeq.
	events []runnerscripts.Event
	size   int64 // of events, in bytes of memory
}

// Create adds a session.
func (m *Memory) Create(ctx context.Context, r Record) error {
	if err := ctx.Err(); err != nil {
		return &Error{Op: "create", ID: r.ID, Err: err}
	}
	r.LastSeq, r.UpdatedAt = 0, r.CreatedAt
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.add("create", &memorySession{record: r.clone(), blobs: make(map[Digest]uint64)})
}

// add adds a session. The caller holds mu.
func (m *Memory) add(op string, s *memorySession) error {
	id := s.record.ID
	if id == "" {
		return &Error{Op: op, Err: fmt.Errorf("%w: the session has no ID; give it one", fs.ErrInvalid)}
	}
	if _, ok := m.sessions[id]; ok {
		return &Error{Op: op, ID: id, Err: fs.ErrExist}
	}
	s.stored = m.clock.Add(1)
	m.sessions[id] = s
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

// Update changes a session's record.
func (m *Memory) Update(ctx context.Context, id string, change func(*Record)) error {
	s, err := m.session(ctx, "update", id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record.clone()
	change(&r)
	old := s.record
	r.ID, r.Parent, r.CreatedAt, r.UpdatedAt, r.LastSeq = old.ID, old.Parent, old.CreatedAt, old.UpdatedAt, old.LastSeq
	s.record = r.clone()
	return nil
}

// List returns the matching records, most recently extended log first.
func (m *Memory) List(ctx context.Context, f Filter) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, r := range m.matching(f) {
			if err := ctx.Err(); err != nil {
				yield(Record{}, &Error{Op: "list", Err: err})
				return
			}
			if !yield(r, nil) {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(Record{}, &Error{Op: "list", Err: err})
		}
	}
}

func (m *Memory) matching(f Filter) []Record {
	m.mu.RLock()
	all := slices.Collect(maps.Values(m.sessions))
	m.mu.RUnlock()
	type found struct {
		Record
		stored uint64
	}
	var matching []found
	for _, s := range all {
		s.mu.RLock()
		if f.Matches(s.record) {
			r := s.record
			r.State = nil
			matching = append(matching, found{r.clone(), s.stored})
		}
		s.mu.RUnlock()
	}
	slices.SortFunc(matching, func(a, b found) int { return cmp.Compare(b.stored, a.stored) })
	if f.Limit > 0 && len(matching) > f.Limit {
		matching = matching[:f.Limit]
	}
	records := make([]Record, len(matching))
	for i, r := range matching {
		records[i] = r.Record
	}
	return records
}

// Delete removes a session.
func (m *Memory) Delete(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return &Error{Op: "delete", ID: id, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.sessions[id]
	if !ok {
		return &Error{Op: "delete", ID: id, Err: ErrNotFound}
	}
	delete(m.sessions, id)
	for d := range s.blobs {
		m.release(d)
	}
	clear(s.blobs)
	return nil
}

// Fork adds a session with the beginning of another session's log, and its blobs.
func (m *Memory) Fork(ctx context.Context, from string, last uint64, r Record) error {
	s, err := m.session(ctx, "fork", from)
	if err != nil {
		return err
	}
	events, err := s.upTo(last)
	if err != nil {
		return &Error{Op: "fork", ID: from, Err: err}
	}
	r.Parent, r.LastSeq, r.UpdatedAt = from, last, r.CreatedAt
	fork := &memorySession{record: r.clone()}
	for _, ev := range events {
		if ev.SessionID == from {
			ev.SessionID = r.ID
		}
		fork.events = append(fork.events, ev)
		fork.size += memoryOf(ev)
		fork.record.UpdatedAt = latest(ev.Time, r.CreatedAt)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sessions[from] != s {
		return &Error{Op: "fork", ID: from, Err: ErrNotFound}
	}
	fork.blobs = maps.Clone(s.blobs)
	maps.DeleteFunc(fork.blobs, func(_ Digest, put uint64) bool { return put >= last })
	if err := m.add("fork", fork); err != nil {
		return err
	}
	for d := range fork.blobs {
		m.blobs[d].sessions++
	}
	return nil
}

// upTo returns the whole log up to last.
func (s *memorySession) upTo(last uint64) ([]runnerscripts.Event, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch first := s.record.LastSeq + 1 - uint64(len(s.events)); {
	case last > s.record.LastSeq:
		return nil, fmt.Errorf("%w: there is no event %d; the last one is %d", fs.ErrInvalid, last, s.record.LastSeq)
	case last > 0 && first > 1:
		return nil, fmt.Errorf("%w: the first event that is left is %d", ErrDropped, first)
	}
	return slices.Clone(s.events[:last]), nil
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
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
		s.record.UpdatedAt = latest(events[n-1].Time, s.record.CreatedAt)
		s.stored = m.clock.Add(1)
	}
	if m.emit == nil {
		s.keep(events, m.MaxLog)
	}
	return nil
}

// keep adds events, and drops the oldest events above limit bytes.
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

// memoryOf returns how many bytes of memory an event takes.
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

// readAhead is how many bytes of events a reader holds besides the next one. The bound keeps a
// reader from retaining dropped events.
const readAhead = 64 << 10

// some returns at least one event, starting at from.
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
	return s.record.clone()
}

// Lock acquires the lease of a session.
func (m *Memory) Lock(ctx context.Context, id string) (unlock func() error, err error) {
	s, err := m.session(ctx, "lock", id)
	if err != nil {
		return nil, err
	}
	if !s.locked.CompareAndSwap(false, true) {
		return nil, &Error{Op: "lock", ID: id, Err: fmt.Errorf("%w by this program", ErrLocked)}
	}
	return sync.OnceValue(func() error {
		s.locked.Store(false)
		return nil
	}), nil
}
