package testmodal

import (
	"encoding/json"
	"slices"
)

// watchRequest asks for changes. A filter that is nil lets all kinds pass, an empty
// one none.
type watchRequest struct {
	Path      string   `json:"path"`
	Recursive bool     `json:"recursive"`
	Filter    []string `json:"filter"`
	Timeout   *int     `json:"timeout_secs"` // in seconds; nil is none
}

// watchEvent is a line of what a watch says.
type watchEvent struct {
	Kind  string   `json:"event_type"`
	Paths []string `json:"paths"`
}

// emit says an event, unless it is filtered out.
func (t tools) emit(req watchRequest, kind string, paths ...string) {
	if req.Filter == nil || slices.Contains(req.Filter, kind) {
		_ = json.NewEncoder(t.stdout).Encode(watchEvent{kind, paths}) // in memory, or a file that has no name
	}
}
