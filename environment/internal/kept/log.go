package kept

import (
	"errors"
	"io/fs"
	"sync"
)

// Log writes the record of one sandbox; nil writes none. Its methods may be called from several goroutines at once.
type Log struct {
	first Record

	mu     sync.Mutex
	stored bool // there was a record: if it is missing, the sandbox was forgotten
}

// NewLog returns the log of a new sandbox, which has the record first.
func NewLog(first Record) *Log { return &Log{first: first} }

// Resume returns the log of a sandbox that may have a record, and that record. Its error is that of [Find]; without a
// record, the first change stores first.
func Resume(first Record) (*Log, *Record, error) {
	r, err := Find(first.Type, first.ID)
	return &Log{first: first, stored: !errors.Is(err, fs.ErrNotExist)}, r, err
}

// Begin stores the record of a new sandbox, in place of one of an earlier sandbox with the same ID.
func (l *Log) Begin(f func(*Record)) error {
	return l.open(func(s *Store) error {
		r := l.first
		f(&r)
		return s.begin(r)
	})
}

// Change changes the record. If the sandbox was forgotten meanwhile, the error is fs.ErrNotExist: it is not remembered
// again.
func (l *Log) Change(f func(*Record)) error {
	return l.open(func(s *Store) error {
		if l.stored {
			return s.change(l.first.Type, l.first.ID, f)
		}
		r := l.first
		f(&r)
		return s.begin(r)
	})
}

// Note is Change for what lists show. If it cannot be stored, they do not show it.
func (l *Log) Note(f func(*Record)) { _ = l.Change(f) }

func (l *Log) open(f func(*Store) error) (err error) {
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
	if err := f(s); err != nil {
		return err
	}
	l.stored = true
	return nil
}

// Name returns the name of the sandbox; empty for none.
func (l *Log) Name() string {
	if l == nil {
		return ""
	}
	r, err := Find(l.first.Type, l.first.ID)
	if err != nil {
		return ""
	}
	return r.Name
}
