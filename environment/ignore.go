package environment

import (
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// ignored reports whether one of the patterns matches the path or one of the
// folders above it. The rule is that of primitives.WatchOptions.Ignore.
func ignored(patterns []string, name string) bool {
	for p := name; p != "." && p != "/"; p = path.Dir(p) {
		if ignoredItself(patterns, p) {
			return true
		}
	}
	return false
}

// ignoredItself does not look at the folders above.
func ignoredItself(patterns []string, name string) bool {
	for _, pattern := range patterns {
		subject := name
		if !strings.Contains(pattern, "/") {
			subject = path.Base(name)
		}
		if doublestar.MatchUnvalidated(pattern, subject) {
			return true
		}
	}
	return false
}
