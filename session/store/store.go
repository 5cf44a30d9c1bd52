package store

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"maps"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Store keeps sessions. All methods may be called from several goroutines at
// once, and from several programs if the store is shared by them.
//
// What a method has acknowledged with a nil error survives whatever the store
// claims to survive: for a store on disk, a crash of the program right after. A
// method that fails has changed nothing, unless it says otherwise. When ctx is done
// before the change is made the method fails with the context's error.
//
// Errors are an [*Error] around a sentinel. Every method but Create and List returns
// [ErrNotFound] for an id that was not created or is deleted.
type Store interface {
	// Create adds a session without events. An id that is there already, and
	// an empty one, are refused: fs.ErrExist, fs.ErrInvalid. LastSeq of the
	// record is ignored, and so is UpdatedAt.
	Create(ctx context.Context, r Record) error

	// Load returns one session's record.
	Load(ctx context.Context, id string) (Record, error)

	// Update calls change with the session's record and stores what it makes of it,
	// as one step: no other Update comes between. What change does to ID, Parent,
	// CreatedAt, UpdatedAt and LastSeq is ignored. change must not call the store.
	Update(ctx context.Context, id string, change func(*Record)) error

	// List returns the records that match, without their State. The session whose last
	// event, or creation, was stored last comes first, whatever the clocks said.
	List(ctx context.Context, f Filter) iter.Seq2[Record, error]

	// Delete removes a session and everything that belongs to it.
	Delete(ctx context.Context, id string) error

	// Fork adds a session with the record r, the events of the session from up to
	// the one whose Seq is last, and all of its blobs, as one step. Events that name
	// the session from name the new one. Parent of the record is from. The errors
	// are those of Create, fs.ErrInvalid for a last beyond the log, and [ErrDropped].
	Fork(ctx context.Context, from string, last uint64, r Record) error

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

	// PutBlobs stores contents for a session and returns the digest of each, in
	// order. It reads each to its end before it takes the next one, and ends with the
	// first error. Then nothing is acknowledged, and every blob is there whole or
	// not at all. The same content is stored once, over all sessions. A store never
	// waits for a reader with other sessions waiting for the store.
	PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) ([]Digest, error)

	// Blob returns the content of a blob of the session; fs.ErrNotExist if it has no
	// such blob. If the stored content does not have this digest any more, Blob or a
	// Read fails with [ErrCorrupt], and never is io.EOF returned: use nothing before
	// it. The caller closes the reader, which works even if the blob is removed
	// meanwhile.
	Blob(ctx context.Context, id string, d Digest) (io.ReadCloser, error)

	// RemoveBlobs removes blobs of the session. One that it does not have is no error.
	RemoveBlobs(ctx context.Context, id string, digests ...Digest) error

	// Lock makes the caller the one that drives the session, until it calls unlock,
	// which may be called more than once, or its program ends in whatever way. The
	// other methods do not ask for it. While another one has the lock, in this program
	// or in another one, the error is [ErrLocked] and names it.
	Lock(ctx context.Context, id string) (unlock func() error, err error)
}

// Digest names the content of a blob: its SHA-256 in lower-case hexadecimal digits.
type Digest string

// Record is what a store knows of a session beside its log and its blobs.
type Record struct {
	ID string `json:"id"`
	// Agent is the name of the agent that drives the conversation.
	Agent string `json:"agent,omitempty"`
	// Parent is the session that it began as a copy of; empty if it is none.
	Parent string `json:"parent,omitempty"`
	// Title is one line, and Summary a few, on what the session is about; empty if
	// nothing has said so.
	Title   string `json:"title,omitempty"`
	Summary string `json:"summary,omitempty"`
	// Status says in one word where the session stands.
	Status string `json:"status,omitempty"`
	// Metadata is the application's own: an owner, a ticket.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Usage is the sum over all queries.
	Usage runnerscripts.Usage `json:"usage,omitzero"`
	// Sandbox is the last sandbox.
	Sandbox Sandbox `json:"sandbox,omitzero"`
	// Config is what the session was opened with, and never the value of a secret.
	Config json.RawMessage `json:"config,omitempty"`

	CreatedAt time.Time `json:"created_at"`
	// UpdatedAt is the time of the last event, but not before CreatedAt.
	UpdatedAt time.Time `json:"updated_at"`
	// LastSeq is the Seq of the last event; zero if there is none.
	LastSeq uint64 `json:"last_seq"`

	// State is the fold of the events up to StateSeq, in a form of the session's own,
	// so that opening the session reads only the events after it. Zero means that
	// there is none.
	State    json.RawMessage `json:"state,omitempty"`
	StateSeq uint64          `json:"state_seq,omitempty"`
}

// Sandbox names a sandbox; both are empty if there was none.
type Sandbox struct {
	Type string `json:"type,omitempty"`
	ID   string `json:"id,omitempty"`
}

// Filter chooses records. An empty field matches every record.
type Filter struct {
	Agent, Status, Parent string
	// Metadata are the keys and values that a record must have.
	Metadata map[string]string
	// Since is the earliest UpdatedAt.
	Since time.Time
	// Limit is the largest number of records; zero means all.
	Limit int
}

// Matches reports whether the filter chooses a record, whatever Limit is.
func (f Filter) Matches(r Record) bool {
	for k, v := range f.Metadata {
		if got, ok := r.Metadata[k]; !ok || got != v {
			return false
		}
	}
	return (f.Agent == "" || f.Agent == r.Agent) && (f.Status == "" || f.Status == r.Status) &&
		(f.Parent == "" || f.Parent == r.Parent) && !r.UpdatedAt.Before(f.Since)
}

// PutBlob stores one blob in a store.
func PutBlob(ctx context.Context, s Store, id string, content io.Reader) (Digest, error) {
	digests, err := s.PutBlobs(ctx, id, func(yield func(io.Reader, error) bool) { yield(content, nil) })
	if err != nil {
		return "", err
	}
	return digests[0], nil
}

// clone returns a record that shares nothing with this one.
func (r Record) clone() Record {
	r.Metadata = maps.Clone(r.Metadata)
	r.Config, r.State = bytes.Clone(r.Config), bytes.Clone(r.State)
	return r
}
