package environment

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Environment is one sandbox that is prepared for one agent. Its methods may be
// called from several goroutines at once, except that one query runs at a time.
type Environment struct {
	prim primitives.EnvironmentPrimitive
	cfg  Config
}

// New prepares any sandbox for an agent. Closing the environment ends what it
// started in the sandbox; the sandbox itself stays the caller's.
func New(ctx context.Context, p primitives.EnvironmentPrimitive, cfg Config) (*Environment, error) {
	return nil, errors.ErrUnsupported
}

// ID returns the sandbox's identity, for [Attach].
func (e *Environment) ID() string { return e.prim.ID() }

// SessionID returns the id of the conversation.
func (e *Environment) SessionID() string { return e.cfg.SessionID }

// Primitive returns the sandbox itself, for its files and commands.
func (e *Environment) Primitive() primitives.EnvironmentPrimitive { return e.prim }

// Healthy reports whether the sandbox takes calls. It really asks it: nil means
// that it answered.
func (e *Environment) Healthy(ctx context.Context) error { return errors.ErrUnsupported }

// Close interrupts a running query, ends the runner scripts and watches, and then
// the sandbox if [Create] made it. It returns when all has ended, and may be called more
// than once.
func (e *Environment) Close() error { return nil }

// Setup is what a session starts with beside the workspace. The zero value is a
// new conversation.
type Setup struct {
	// Files are written into the workspace by the runner; they count as
	// changes.
	Files []runnerscripts.WorkspaceFile
	// Transcript is restored, so that the agent remembers an earlier
	// conversation.
	Transcript *runnerscripts.Transcript
}

// PrepareSession writes what the agent needs into the sandbox and restores the
// transcript. [Environment.ExecuteQuery] does it with a zero Setup if nobody did.
func (e *Environment) PrepareSession(ctx context.Context, s Setup) (runnerscripts.SetupData, error) {
	return runnerscripts.SetupData{}, errors.ErrUnsupported
}

// Query is one prompt.
type Query struct {
	Prompt string
	// ID becomes Event.QueryID of what the query brings about. Empty means a
	// new one.
	ID string
}

// ExecuteQuery gives the agent a prompt and returns what happens, to the end of
// the query. The agent is started by the first query and stays alive between
// queries.
//
// The events end with query_completed or query_failed, always. A query that did
// not complete ends the sequence with an error after that: a [*QueryError] if
// the agent said so, a [*ScriptError] if the runner died or broke the protocol,
// primitives.ErrUnavailable in its chain if the sandbox is gone, [ErrBusy] (and
// no event) if another query runs.
//
// Leaving the loop early interrupts the query and waits for its end. When ctx is
// done the query is interrupted, what it still says is returned, and the sequence
// ends with the context's error. An agent that does not heed an interrupt is
// killed.
func (e *Environment) ExecuteQuery(ctx context.Context, q Query) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		yield(runnerscripts.Event{}, errors.ErrUnsupported)
	}
}

// Interrupt asks the running query to stop and does not wait for it: the query
// completes with runnerscripts.StopCancelled. Without a running query it does
// nothing.
func (e *Environment) Interrupt(ctx context.Context) error { return errors.ErrUnsupported }

// Respond answers a permission request of the running query. Without one it
// returns [ErrNoQuery].
func (e *Environment) Respond(ctx context.Context, id string, d runnerscripts.PermissionDecision) error {
	return errors.ErrUnsupported
}

// SetMode changes the agent's permission mode, now and for agents that this
// environment starts later.
func (e *Environment) SetMode(ctx context.Context, mode string) error { return errors.ErrUnsupported }

// SetModel changes the agent's model, now and for agents that this environment
// starts later.
func (e *Environment) SetModel(ctx context.Context, model string) error {
	return errors.ErrUnsupported
}

// ReadTranscript returns the conversation as the agent itself keeps it; an empty
// one if there is none yet.
func (e *Environment) ReadTranscript(ctx context.Context) (runnerscripts.Transcript, error) {
	return runnerscripts.Transcript{}, errors.ErrUnsupported
}

// ReadConversation returns the conversation so far as events, each with the time
// at which it happened, read from the agent's own history.
func (e *Environment) ReadConversation(ctx context.Context) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		yield(runnerscripts.Event{}, errors.ErrUnsupported)
	}
}

// WatchTranscript returns a transcript_changed event with the whole transcript
// each time it has changed and come to rest, until ctx is done or the loop is
// left. The watch is live when WatchTranscript returns.
func (e *Environment) WatchTranscript(ctx context.Context) (iter.Seq2[runnerscripts.Event, error], error) {
	return nil, errors.ErrUnsupported
}

// DefaultIgnore is what WorkspaceFiles and WatchWorkspace leave out: what tools
// make and nobody edits.
func DefaultIgnore() []string { return []string{".git", "node_modules"} }

// FilesOptions says which files of the workspace to return. The zero value
// returns all but the ignored ones, without content.
type FilesOptions struct {
	// Ignore replaces [DefaultIgnore]; an empty, non-nil slice ignores nothing.
	Ignore []string
	// MaxContent brings the content of files of up to so many bytes. Zero
	// brings none.
	MaxContent int64
}

// WorkspaceFile is a file of the workspace.
type WorkspaceFile struct {
	primitives.FileInfo
	// Content is the file's content if it was asked for and fits.
	Content []byte `json:"content,omitempty"`
	// Omitted is why there is none: "too_large", "unreadable".
	Omitted string `json:"omitted,omitempty"`
}

// WorkspaceFiles returns the files and links of the workspace, sorted by path.
func (e *Environment) WorkspaceFiles(ctx context.Context, opts FilesOptions) ([]WorkspaceFile, error) {
	return nil, errors.ErrUnsupported
}

// WatchWorkspace returns file_created, file_modified, file_deleted and
// file_renamed events until ctx is done or the loop is left. The watch is live
// when WatchWorkspace returns.
func (e *Environment) WatchWorkspace(ctx context.Context, opts FilesOptions) (iter.Seq2[runnerscripts.Event, error], error) {
	return nil, errors.ErrUnsupported
}

// Change is a difference between the workspace now and as it was when the
// sources were placed.
type Change struct {
	Kind ChangeKind `json:"kind"`
	// Path is relative to the workspace.
	Path string `json:"path"`
	// OldMode and NewMode are type and permission as in io/fs; zero where
	// there is no file.
	OldMode fs.FileMode `json:"old_mode,omitempty"`
	NewMode fs.FileMode `json:"new_mode,omitempty"`
	// OldSize and NewSize are in bytes.
	OldSize int64 `json:"old_size,omitempty"`
	NewSize int64 `json:"new_size,omitempty"`
}

// ChangeKind is the kind of a change.
type ChangeKind string

// The kinds.
const (
	Created  ChangeKind = "created"
	Modified ChangeKind = "modified" // content, mode or both
	Deleted  ChangeKind = "deleted"
)

// Changes returns what has changed in the workspace since the sources were
// placed, sorted by path. Files, links and their permissions count; empty
// folders and what is in .git do not.
func (e *Environment) Changes(ctx context.Context) ([]Change, error) {
	return nil, errors.ErrUnsupported
}

// Patch writes the changes to w as one patch that "git apply" takes: text,
// binary files, permissions and links.
func (e *Environment) Patch(ctx context.Context, w io.Writer) error { return errors.ErrUnsupported }
