package primitives

import "time"

// WatchOptions says what to watch. The zero value watches the whole tree below
// the directory and reports paths without content.
type WatchOptions struct {
	// Shallow watches the direct children only.
	Shallow bool `json:"shallow,omitempty"`
	// Include reports only what matches one of these patterns; empty means
	// everything. Ignore leaves out what matches, also everything below a
	// directory that matches; it wins over Include. Patterns are matched
	// against the path relative to the watched directory, in the syntax of
	// ListOptions.Pattern; one without a slash matches a name at any depth.
	Include []string `json:"include,omitempty"`
	Ignore  []string `json:"ignore,omitempty"`
	// MaxContent sends the content of created and modified files of up to so
	// many bytes along. Zero sends none.
	MaxContent int64 `json:"max_content,omitempty"`
	// Debounce reports the changes of one path that follow each other within
	// this time once, when they have come to rest. Zero reports each.
	Debounce time.Duration `json:"debounce,omitempty"`
}

// WatchEvent is one change.
type WatchEvent struct {
	Op WatchOp `json:"op"`
	// Path is the slash path relative to the watched directory.
	Path string `json:"path,omitempty"`
	// From is the old path of a rename.
	From string `json:"from,omitempty"`
	// Dir reports that it is a directory; for removals as far as known.
	Dir  bool      `json:"dir,omitempty"`
	Size int64     `json:"size,omitempty"` // bytes, of regular files, at the time of the report
	Time time.Time `json:"time"`
	// Content is the file's content if it was asked for; Omitted says why not.
	Content []byte         `json:"content,omitempty"`
	Omitted ContentOmitted `json:"omitted,omitempty"`
}

// WatchOp is the kind of a change.
type WatchOp string

// The kinds of change.
const (
	OpCreate WatchOp = "create" // a new path, or one moved in from outside
	OpModify WatchOp = "modify" // content or permission changed
	OpRemove WatchOp = "remove" // gone, or moved out
	OpRename WatchOp = "rename" // From became Path, both inside the watched tree
	// OpOverflow: changes were missed; what differs from what was reported
	// follows as ordinary events.
	OpOverflow WatchOp = "overflow"
)

// ContentOmitted says why a watch event that should carry content does not.
type ContentOmitted string

// The reasons.
const (
	OmittedTooLarge   ContentOmitted = "too_large"  // over WatchOptions.MaxContent
	OmittedUnreadable ContentOmitted = "unreadable" // not permitted, or gone again
)
