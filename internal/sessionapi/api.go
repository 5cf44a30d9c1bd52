// Package sessionapi is the HTTP interface of sessions: its paths, bodies and errors. Packages server and session/remote are
// its two ends. Events, states, changes and files travel as the types of the packages that own them.
package sessionapi

import (
	"encoding/json"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/agentenv-dev/agentenv/environment"
	"github.com/agentenv-dev/agentenv/internal/answers"
	"github.com/agentenv-dev/agentenv/internal/apierror"
	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Prefix begins all paths of this version.
const Prefix = "/v1"

// SessionPath returns the path of a session, and below it. An ID that is no part of a path names no session.
func SessionPath(id string, below ...string) string {
	if id == "" || id == "." || id == ".." {
		id = "none"
	}
	path := Prefix + "/sessions/" + url.PathEscape(id)
	for _, part := range below {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// PermissionPath returns the path of a stored answer; that of all if id is empty.
func PermissionPath(id string) string {
	path := Prefix + "/permissions"
	if id != "" {
		path += "/" + url.PathEscape(id)
	}
	return path
}

// Headers and events that both ends know.
const (
	// KeyHeader names one change. The server makes a change whose key it has seen once only, and answers as before.
	KeyHeader = "Idempotency-Key"
	// LastEventID is the header with the Seq of the last event that the client has.
	LastEventID = "Last-Event-ID"
	// Heartbeat is how often a stream without events has a comment.
	Heartbeat = 15 * time.Second

	// EventEnd is the last event of a stream whose session was closed.
	EventEnd = "end"
	// EventError is the last event of a stream that fails; its data is an apierror.Body.
	EventError = "error"
	// EventShutdown is the last event of a stream whose server stops. The client connects again.
	EventShutdown = "shutdown"
)

// Duration is a time span, in JSON as in "1m30s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// Span returns the duration.
func (d Duration) Span() time.Duration { return time.Duration(d) }

// NewSession is the body that creates a session, and that loads a team. The fields are those of session.Config.
type NewSession struct {
	// Config is the environment, as in a configuration file. Paths in it are of the server's machine. What it lacks is the server's.
	Config             json.RawMessage   `json:"config,omitempty" jsonschema:"the environment, as in a configuration file; its paths are of the server's machine"`
	PermissionTimeout  Duration          `json:"permission_timeout,omitzero"`
	Metadata           map[string]string `json:"metadata,omitempty"`
	RejectBusy         bool              `json:"reject_busy,omitempty"`
	MaxQueue           int               `json:"max_queue,omitempty"`
	HealthInterval     Duration          `json:"health_interval,omitzero"`
	IdleTimeout        Duration          `json:"idle_timeout,omitzero"`
	NoFiles            bool              `json:"no_files,omitempty"`
	MaxQuerySize       int64             `json:"max_query_size,omitempty"`
	MaxSessionSize     int64             `json:"max_session_size,omitempty"`
	CheckpointInterval Duration          `json:"checkpoint_interval,omitzero"`
	KeepPeriodic       int               `json:"keep_periodic,omitempty"`
	WatchWorkspace     *FilesOptions     `json:"watch_workspace,omitempty"`
}

// FilesOptions are environment.FilesOptions.
type FilesOptions struct {
	Ignore     []string `json:"ignore,omitzero"`
	MaxContent int64    `json:"max_content,omitempty"`
}

// Created names a session.
type Created struct {
	ID string `json:"id"`
}

// Team is what a session with a configuration would have.
type Team struct {
	Config json.RawMessage `json:"config" jsonschema:"the whole environment, with the profile and without secrets"`
}

// Run is the body of a prompt whose answer is the events of its query.
type Run struct {
	SessionID string `json:"session_id"`
	Prompt
}

// Tools are what an agent offers to its model.
type Tools struct {
	Tools []string `json:"tools"`
}

// Models are what an agent lets its user choose from.
type Models struct {
	Models []runnerscripts.Model `json:"models"`
}

// Prompt is the body of a prompt.
type Prompt struct {
	Text        string                     `json:"text"`
	Attachments []runnerscripts.Attachment `json:"attachments,omitempty" jsonschema:"images, PDF documents and texts, of 10 MiB together; of each name, media_type and data are read"`
	// OutputSchema may be any JSON, such as true.
	OutputSchema json.RawMessage `json:"output_schema,omitempty" jsonschema:"the JSON schema of the output, of at most 64 KiB, which result_data of query_completed then matches"`
}

// Accepted is the query of a prompt: its ID, and the Seq of its first event.
type Accepted struct {
	ID  string `json:"id"`
	Seq uint64 `json:"seq"`
}

// EventsOf returns the events of one query, up to its end, and those without a query: the sandbox's own. events must begin with the
// first event of the query.
func EventsOf(query string, events iter.Seq2[runnerscripts.Event, error]) iter.Seq2[runnerscripts.Event, error] {
	return func(yield func(runnerscripts.Event, error) bool) {
		for ev, err := range events {
			if err == nil && ev.QueryID != "" && ev.QueryID != query {
				continue
			}
			if !yield(ev, err) || err == nil && ev.QueryID == query && ev.Type.EndsQuery() {
				return
			}
		}
	}
}

// Rewind is the body of a rewind.
type Rewind struct {
	Checkpoint int `json:"checkpoint"`
}

// Fork is the body of a fork. Without Checkpoint the copies have what is there now.
type Fork struct {
	N          int  `json:"n"`
	Checkpoint *int `json:"checkpoint,omitempty"`
}

// Forks names the copies.
type Forks struct {
	IDs []string `json:"ids"`
}

// Sessions is a list of sessions. A damaged one has an error in place of its record.
type Sessions struct {
	Sessions []Listed `json:"sessions"`
}

// Listed is a session in a list.
type Listed struct {
	store.Record
	Error *apierror.Error `json:"error,omitempty"`
}

// Permissions are the stored answers to permission requests. The keys of their calls stay with the server.
type Permissions struct {
	Permissions []answers.Answer `json:"permissions"`
}

// Files is a list of files.
type Files struct {
	Files []environment.WorkspaceFile `json:"files"`
}

// Changes is a list of changes.
type Changes struct {
	Changes []environment.Change `json:"changes"`
}

// FilterQuery returns a filter as the query of an address.
func FilterQuery(f store.Filter) url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"agent": f.Agent, "status": f.Status, "parent": f.Parent} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if !f.Since.IsZero() {
		q.Set("since", f.Since.Format(time.RFC3339Nano))
	}
	if f.Limit != 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	for key, value := range f.Metadata {
		q.Add("metadata", key+"="+value)
	}
	return q
}
