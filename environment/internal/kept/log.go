package kept

import (
	"errors"
	"sync"
)

// Log writes the record of one sandbox; nil writes none. Its methods may be called from several goroutines at once.
type Log struct {
	first Record

	mu    sync.Mutex
	known bool // this program has stored the record: if it is missing, the sandbox was forgotten
}

// NewLog returns the log of a sandbox. If there is no record yet, it begins with first, which names the sandbox.
func NewLog(first Record) *Log { return &Log{first: first} }

// Begin stores the record of a new sandbox, in place of one of an earlier sandbox with the same ID.
func (l *Log) Begin(f func(*Record)) error {
	return l.store(true, func(r *Record) {
		*r = l.first
		f(r)
	})
}

// Store changes the record. A sandbox that was forgotten meanwhile is not remembered again.
func (l *Log) Store(f func(*Record)) error { return l.store(false, f) }

// Note is Store for what is only missing in lists if it cannot be stored.
func (l *Log) Note(f func(*Record)) { _ = l.Store(f) }

func (l *Log) store(begin bool, f func(*Record)) (err error) {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s, err := Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var first *Record
	if begin || !l.known {
		first = &l.first
	}
	if err := s.change(l.first.Type, l.first.ID, first, f); err != nil {
		return err
	}
	l.known = true
	return nil
}

// Name returns the name of the sandbox; empty for none.
func (l *Log) Name() string {
	if l == nil {
		return ""
	}
	if r := Find(l.first.Type, l.first.ID); r != nil {
		return r.Name
	}
	return ""
}
