package testmodal

import (
	"encoding/json"
	"slices"
)

// watchRequest is a request to watch for changes. A nil Filter allows all kinds, an empty one
// none.
type watchRequest struct {
	Path      string   `json:"path"`
	Recursive bool     `json:"recursive"`
	Filter    []string `json:"filter"`
	Timeout   *int     `json:"timeout_secs"` // in seconds; nil means none
}

// watchEvent is a line of a watch's output.
type watchEvent struct {
	Kind  string   `json:"event_type"`
	Paths []string `json:"paths"`
}

// emit writes an event, unless it is filtered out.
func (t tools) emit(req watchRequest, kind string, paths ...string) {
	if req.Filter == nil || slices.Contains(req.Filter, kind) {
		_ = json.NewEncoder(t.stdout).Encode(watchEvent{kind, paths}) // in memory, or a file that has no name
	}
}
