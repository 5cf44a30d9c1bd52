package relink_test

import (
	"testing"

	"github.com/agentenv-dev/agentenv/internal/relink"
)

func TestLinksIntoTheFolderLeadIntoTheCopy(t *testing.T) {
	for target, want := range map[string]string{
		"/a/ws":         "/b/new",
		"/a/ws/v/bin":   "/b/new/v/bin",
		"/a/ws-other/f": "/a/ws-other/f",
		"/a":            "/a",
		"../ws/f":       "../ws/f",
		"ws":            "ws",
	} {
		if got := relink.Target(target, "/a/ws", "/b/new"); got != want {
			t.Errorf("%s became %s, want %s", target, got, want)
		}
	}
}
