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

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Memory is a [Store] in the memory of this program. It holds every event of
// every session until the session is deleted, and nothing survives the program.
// The zero value is not usable; see [NewMemory].
type Memory struct {
	mu       sync.RWMutex
	sessions map[string]*memorySession
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{sessions: make(map[string]*memorySession)}
}

type memorySession struct {
	mu     sync.RWMutex
	record Record
	// events only grows, and what is in it never changes, so that readers
	// can go through a prefix of it without the lock.
	events []runnerscripts.Event
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
		return &Error{Op: "create", Err: fmt.Errorf("%w: give the session an id", fs.ErrInvalid)}
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
	s.mu.Lock()
	defer s.mu.Unlock()
	last := uint64(len(s.events))
	for i, ev := range events {
		if want := last + uint64(i) + 1; ev.Seq != want {
			return &Error{Op: "append", ID: id, Err: fmt.Errorf("%w: event %d where %d comes next", ErrConflict, ev.Seq, want)}
		}
	}
	for _, ev := range events {
		ev.Payload = bytes.Clone(ev.Payload)
		s.events = append(s.events, ev)
	}
	if n := len(events); n > 0 {
		s.record.LastSeq = events[n-1].Seq
		s.record.UpdatedAt = events[n-1].Time
	}
	return nil
}

// Events returns the log of a session.
func (m *Memory) Events(ctx context.Context, id string, from uint64) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		s, err := m.session(ctx, "events", id)
		if err != nil {
			yield(runnerscripts.Event{}, err)
			return
		}
		s.mu.RLock()
		events := s.events
		s.mu.RUnlock()
		from = max(from, 1)
		if from > uint64(len(events)) {
			return
		}
		for _, ev := range events[from-1:] {
			if err := ctx.Err(); err != nil {
				yield(runnerscripts.Event{}, &Error{Op: "events", ID: id, Err: err})
				return
			}
			if !yield(ev, nil) {
				return
			}
		}
	}
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
