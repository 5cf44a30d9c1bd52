package primitives

import (
	"encoding/json"
	"time"
	"unicode/utf8"
)

// WatchOptions configures a watch. The zero value watches the whole tree below the directory
// and reports paths without content.
type WatchOptions struct {
	// Shallow watches the direct children only.
	Shallow bool `json:"shallow,omitempty"`
	// Include selects the paths that match one of these patterns; empty means all paths. Ignore
	// leaves out paths that match, and everything below a directory that matches; it takes
	// precedence over Include. Patterns are matched against the path relative to the watched
	// directory, in the syntax of ListOptions.Pattern; a pattern without a slash matches a name
	// at any depth.
	Include []string `json:"include,omitempty"`
	Ignore  []string `json:"ignore,omitempty"`
	// MaxContent adds the content of created and modified files of up to this many bytes to
	// their events. Zero adds none.
	MaxContent int64 `json:"max_content,omitempty"`
	// Debounce combines the changes of one path that follow each other within this time into
	// one event, after the last of them. Zero reports each change.
	Debounce time.Duration `json:"debounce,omitempty"`
}

// WatchEvent is one change.
type WatchEvent struct {
	Op WatchOp `json:"op"`
	// Path is the slash path relative to the watched directory.
	Path string `json:"path,omitempty"`
	// From is the old path of a rename.
	From string `json:"from,omitempty"`
	// Dir reports whether the path is a directory; for removals as far as known.
	Dir  bool      `json:"dir,omitempty"`
	Size int64     `json:"size,omitempty"` // bytes, of regular files, at the time of the report
	Time time.Time `json:"time"`
	// Content is the file's content if MaxContent includes it; else Omitted says why not.
	Content []byte         `json:"content,omitempty"`
	Omitted ContentOmitted `json:"omitted,omitempty"`
}

// watchEventJSON is a WatchEvent in JSON, which holds no text that is not UTF-8.
type watchEventJSON struct {
	plainWatchEvent
	PathBytes []byte `json:"path_bytes,omitempty"`
	FromBytes []byte `json:"from_bytes,omitempty"`
}

type plainWatchEvent WatchEvent // without methods

// MarshalJSON implements json.Marshaler. A Path or From that is not UTF-8 also has its bytes in
// path_bytes or from_bytes.
func (e WatchEvent) MarshalJSON() ([]byte, error) {
	j := watchEventJSON{plainWatchEvent: plainWatchEvent(e)}
	if !utf8.ValidString(e.Path) {
		j.PathBytes = []byte(e.Path)
	}
	if !utf8.ValidString(e.From) {
		j.FromBytes = []byte(e.From)
	}
	return json.Marshal(j)
}

// UnmarshalJSON implements json.Unmarshaler. Path and From are the names, also if they are not
// UTF-8.
func (e *WatchEvent) UnmarshalJSON(data []byte) error {
	var j watchEventJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*e = WatchEvent(j.plainWatchEvent)
	if len(j.PathBytes) > 0 {
		e.Path = string(j.PathBytes)
	}
	if len(j.FromBytes) > 0 {
		e.From = string(j.FromBytes)
	}
	return nil
}

// WatchOp is the kind of a change.
type WatchOp string

// The kinds of change.
const (
	OpCreate WatchOp = "create" // a new path, or one moved in from outside
	OpModify WatchOp = "modify" // content or permission changed
	OpRemove WatchOp = "remove" // gone, or moved out
	OpRename WatchOp = "rename" // From became Path, both inside the watched tree
	// OpOverflow: changes were missed. The differences to the earlier events follow as ordinary
	// events.
	OpOverflow WatchOp = "overflow"
)

// ContentOmitted says why a watch event that should carry content does not.
type ContentOmitted string

// The reasons why content is omitted.
const (
	OmittedTooLarge   ContentOmitted = "too_large"  // over WatchOptions.MaxContent
	OmittedUnreadable ContentOmitted = "unreadable" // not permitted, or already removed
)
