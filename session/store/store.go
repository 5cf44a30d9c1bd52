package store

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Store stores sessions. All methods may be called from several goroutines at once, and from
// several programs if they share the store.
//
// Changes acknowledged with a nil error survive the failures that the store claims to survive:
// for a store on disk, a crash of the program right after. A method that fails has changed
// nothing, unless it says otherwise. If ctx is done before the change is made, the method fails
// with the context's error.
//
// Errors are an [*Error] around a sentinel. Every method except Create and List returns
// [ErrNotFound] for an unknown or deleted ID.
type Store interface {
	// Create adds a session without events. An existing ID is fs.ErrExist, an empty one
	// fs.ErrInvalid. Create ignores LastSeq and UpdatedAt of the record.
	Create(ctx context.Context, r Record) error

	// Load returns one session's record.
	Load(ctx context.Context, id string) (Record, error)

	// Update atomically calls change with the session's record and stores the result: no other
	// Update comes between. It ignores changes to ID, Parent, CreatedAt, UpdatedAt and LastSeq.
	// change must not call the store.
	Update(ctx context.Context, id string, change func(*Record)) error

	// List returns the matching records, without their State. They are ordered by when their
	// last event, or their creation, was stored, latest first, whatever the clocks said. A
	// damaged record has its ID alone and comes with ErrCorrupt, whatever the filter, and the
	// loop may go on.
	List(ctx context.Context, f Filter) iter.Seq2[Record, error]

	// Delete removes a session and everything that belongs to it.
	Delete(ctx context.Context, id string) error

	// Fork atomically adds a session with the record r, the events of the session from up to
	// the event whose Seq is last, and the blobs that it had when that event was appended and
	// still has: only later events name the others, so a fork takes no room for them. Events
	// that name the session from name the new one. Parent of the record is set to from. The
	// errors are those of Create, fs.ErrInvalid for a last beyond the log, and [ErrDropped].
	Fork(ctx context.Context, from string, last uint64, r Record) error

	// Append adds all events to the session's log, or none. Their Seq must continue the log
	// without a gap; otherwise another program has written to the session, and Append returns
	// [ErrConflict]. So two programs cannot drive one session. The store does not retain the
	// payloads.
	Append(ctx context.Context, id string, events ...runnerscripts.Event) error

	// Events returns the log from the event whose Seq is from (zero means 1) to the last event
	// at the start of the loop, in order. Every field is as it was appended, the payload byte
	// by byte. A from beyond the last event is an empty sequence, not an error. Payloads must
	// not be modified. A slow loop does not block Append. A store that bounds its logs drops
	// the oldest events, and Events returns [ErrDropped] when the next event was dropped.
	Events(ctx context.Context, id string, from uint64) iter.Seq2[runnerscripts.Event, error]

	// PutBlobs stores contents for a session and returns the digest of each, in order. It reads
	// each content to its end before it takes the next, and stops at the first error. After an
	// error it has acknowledged nothing, and every blob is stored whole or not at all. Equal
	// contents are stored once, across all sessions. A store must not block other sessions while
	// it waits for a reader.
	PutBlobs(ctx context.Context, id string, contents iter.Seq2[io.Reader, error]) ([]Digest, error)

	// Blob returns the content of a blob of the session, or fs.ErrNotExist. If the stored
	// content does not match its digest, Blob or a Read fails with [ErrCorrupt] and io.EOF is
	// never returned: do not use the data before io.EOF. The caller must close the reader,
	// which works even if the blob is removed meanwhile.
	Blob(ctx context.Context, id string, d Digest) (io.ReadCloser, error)

	// RemoveBlobs removes blobs of the session. Unknown blobs are not an error.
	RemoveBlobs(ctx context.Context, id string, digests ...Digest) error

	// Lock acquires the lease of the session until unlock is called or the program ends in any
	// way. unlock may be called more than once. The other methods do not check the lease. If
	// another owner, in this or another program, has it, Lock returns an [ErrLocked] that names
	// the owner.
	Lock(ctx context.Context, id string) (unlock func() error, err error)
}

// Digest names the content of a blob: its SHA-256 in lower-case hexadecimal digits.
type Digest string

// Record is the metadata of a session, besides its log and its blobs.
type Record struct {
	ID string `json:"id"`
	// Agent is the name of the agent that drives the conversation.
	Agent string `json:"agent,omitempty"`
	// Parent is the session that this one was forked from; empty if none.
	Parent string `json:"parent,omitempty"`
	// Title is one line, and Summary a few lines, on what the session is about; empty if
	// unknown.
	Title   string `json:"title,omitempty"`
	Summary string `json:"summary,omitempty"`
	// Status is the state of the session in one word.
	Status string `json:"status,omitempty"`
	// Metadata is free for the application: an owner, a ticket.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Usage is the sum over all queries.
	Usage runnerscripts.Usage `json:"usage,omitzero"`
	// Delegated is what the sessions that its agent has started and that were removed have used.
	Delegated runnerscripts.Usage `json:"delegated,omitzero"`
	// Sandbox is the last sandbox.
	Sandbox Sandbox `json:"sandbox,omitzero"`
	// Sandboxes are the IDs of the latest sandboxes so far, also of those that have ended, oldest
	// first.
	Sandboxes []string `json:"sandboxes,omitempty"`
	// Config is the configuration with which the session was opened. It has neither the values of
	// the agent's variables nor those of credentials.
	Config json.RawMessage `json:"config,omitempty"`

	CreatedAt time.Time `json:"created_at"`
	// UpdatedAt is the time of the last event, but not before CreatedAt.
	UpdatedAt time.Time `json:"updated_at"`
	// LastSeq is the Seq of the last event; zero if there is none.
	LastSeq uint64 `json:"last_seq"`

	// State is the fold of the events up to StateSeq, in a private format of package session,
	// so that opening a session reads only the later events. A zero StateSeq means that there
	// is none.
	State    json.RawMessage `json:"state,omitempty"`
	StateSeq uint64          `json:"state_seq,omitempty"`
}

// Sandbox names a sandbox; both are empty if there was none.
type Sandbox struct {
	Type string `json:"type,omitempty"`
	ID   string `json:"id,omitempty"`
}

// Filter selects records. An empty field matches every record.
type Filter struct {
	Agent, Status, Parent string
	// Metadata are the keys and values that a record must have.
	Metadata map[string]string
	// Since is the earliest UpdatedAt.
	Since time.Time
	// Limit is the largest number of records; zero means all.
	Limit int
}

// Matches reports whether the filter selects a record, ignoring Limit.
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

// clone returns a deep copy of a record.
func (r Record) clone() Record {
	r.Metadata = maps.Clone(r.Metadata)
	r.Config, r.State = bytes.Clone(r.Config), bytes.Clone(r.State)
	r.Sandboxes = slices.Clone(r.Sandboxes)
	return r
}
