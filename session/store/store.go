package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Store keeps sessions. All methods may be called from several goroutines at
// once, and from several programs if the store is shared by them.
//
// What a method has acknowledged with a nil error survives whatever the store
// claims to survive: for a store on disk, a crash of the program right after. A
// method that fails has changed nothing. When ctx is done before the change is
// made the method fails with the context's error.
//
// Errors are an [*Error] around a sentinel. Every method but Create returns
// [ErrNotFound] for an id that was not created or is deleted.
type Store interface {
	// Create adds a session without events. An id that is there already, and
	// an empty one, are refused: fs.ErrExist, fs.ErrInvalid. LastSeq of the
	// record is ignored, and so is UpdatedAt.
	Create(ctx context.Context, r Record) error

	// Load returns one session's record.
	Load(ctx context.Context, id string) (Record, error)

	// List returns the records of all sessions, the most recently updated
	// first.
	List(ctx context.Context) iter.Seq2[Record, error]

	// Delete removes a session and everything that belongs to it.
	Delete(ctx context.Context, id string) error

	// Append adds events to the session's log, all of them or none. Their Seq
	// continues the log without a gap; if it does not, because another program
	// has written to the session, nothing is added: [ErrConflict]. So two
	// programs cannot drive one session. The store does not
	// keep a reference to the payloads.
	Append(ctx context.Context, id string, events ...runnerscripts.Event) error

	// Events returns the log from the event whose Seq is from (zero means 1)
	// to the last event that was there when the loop began, in order, with
	// every field as it was appended, the payload byte by byte. A from beyond
	// the last event is an empty sequence, not an error. Payloads must not be
	// modified. A slow loop does not block Append. A store
	// that bounds its logs drops the oldest events, and
	// returns [ErrDropped] when the next one is gone.
	Events(ctx context.Context, id string, from uint64) iter.Seq2[runnerscripts.Event, error]

	// Put replaces a part of the session by what it reads from r, whole or not
	// at all: when r fails, what was there before stays. A revision lower than
	// the stored one is refused, so that nothing newer is ever lost:
	// [ErrStale]. An equal one replaces.
	Put(ctx context.Context, id string, part Part, revision uint64, r io.Reader) error

	// Get returns a part and its revision. A part that was never put is
	// fs.ErrNotExist. The caller closes the reader. What it reads is one
	// revision, even if another is put meanwhile.
	Get(ctx context.Context, id string, part Part) (io.ReadCloser, uint64, error)
}

// Record is what a store knows of a session beside its log and its parts.
type Record struct {
	ID string `json:"id"`
	// Agent is the name of the agent whose transcript it is.
	Agent string `json:"agent,omitempty"`
	// Parent is the session that it began as a copy of; empty if it is none.
	Parent string `json:"parent,omitempty"`
	// Metadata is the application's own: a title, an owner.
	Metadata  map[string]string `json:"metadata,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	// UpdatedAt is the time of the last event; CreatedAt if there is none.
	UpdatedAt time.Time `json:"updated_at"`
	// LastSeq is the Seq of the last event; zero if there is none.
	LastSeq uint64 `json:"last_seq"`
}

// Part names something large that is kept beside the log.
type Part string

// The parts. The revision of each is the LastSeq of the session at the time it
// was taken.
const (
	// PartTranscript is a runnerscripts.Transcript as JSON.
	PartTranscript Part = "transcript"
	// PartWorkspace is the workspace as a tar archive.
	PartWorkspace Part = "workspace"
)

// What can go wrong beside fs.ErrExist, fs.ErrNotExist, fs.ErrInvalid and the
// errors of a context.
var (
	// ErrNotFound: the store has no such session.
	ErrNotFound = errors.New("no such session")
	// ErrConflict: the events do not continue the session's log, because
	// another writer has continued it.
	ErrConflict = errors.New("the session was continued by another program")
	// ErrDropped: the events were dropped to keep the log within its bound.
	ErrDropped = errors.New("the events are no longer stored")
	// ErrStale: what is stored is newer.
	ErrStale = errors.New("a newer revision is stored")
)

// Error says which operation on which session failed.
type Error struct {
	Op  string // the method in lower case: "append"
	ID  string // of the session; may be empty
	Err error  // what happened; never nil
}

// Error returns "store: op id: what".
func (e *Error) Error() string {
	if e.ID == "" {
		return fmt.Sprintf("store: %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("store: %s %q: %v", e.Op, e.ID, e.Err)
}

// Unwrap returns what happened.
func (e *Error) Unwrap() error { return e.Err }
