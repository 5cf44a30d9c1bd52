package store

import (
	"errors"
	"fmt"
)

// The errors of a store, besides fs.ErrExist, fs.ErrNotExist, fs.ErrInvalid and the errors of a
// context. A full disk is syscall.ENOSPC, a read-only one fs.ErrPermission.
var (
	// ErrNotFound: the store has no such session.
	ErrNotFound = errors.New("no such session")
	// ErrConflict: the events do not continue the session's log, because
	// another writer has continued it.
	ErrConflict = errors.New("the session was continued by another program")
	// ErrDropped: the events were dropped to keep the log within its bound.
	ErrDropped = errors.New("the events are no longer stored")
	// ErrLocked: another program, or another part of this one, drives the session.
	ErrLocked = errors.New("the session is in use")
	// ErrBusy: other programs write to the store without a pause. Try again.
	ErrBusy = errors.New("the store is in use by another program")
	// ErrUnavailable: the store cannot be reached. Try again.
	ErrUnavailable = errors.New("the store cannot be reached")
	// ErrNewer: a newer version of the program has written the store.
	ErrNewer = errors.New("the store is of a newer version")
	// ErrCorrupt: what is stored was damaged.
	ErrCorrupt = errors.New("the stored data is damaged")
)

// Error says which operation on which session failed.
type Error struct {
	Op  string // the method in lower case: "append"
	ID  string // of the session; may be empty
	Err error  // the cause; never nil
}

// Error returns "store: op id: what".
func (e *Error) Error() string {
	if e.ID == "" {
		return fmt.Sprintf("store: %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("store: %s %q: %v", e.Op, e.ID, e.Err)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }
