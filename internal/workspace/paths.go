package workspace

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// Ignored reports whether a pattern matches the path or one of its parents. The rule is that of
// primitives.WatchOptions.Ignore.
func Ignored(patterns []string, name string) bool {
	for p := name; p != "." && p != "/"; p = path.Dir(p) {
		if IgnoredItself(patterns, p) {
			return true
		}
	}
	return false
}

// IgnoredItself is like [Ignored], but does not look at the parents.
func IgnoredItself(patterns []string, name string) bool {
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

// LeadsOut reports whether a clean path is outside its folder. Unlike fs.ValidPath it accepts
// names that are not UTF-8.
func LeadsOut(name string) bool {
	return path.IsAbs(name) || name == ".." || strings.HasPrefix(name, "../")
}

// NotUTF8 returns the bytes of a name that is not UTF-8, which JSON cannot hold as a text; else
// nil.
func NotUTF8(name string) []byte {
	if utf8.ValidString(name) {
		return nil
	}
	return []byte(name)
}

// CheckPatterns returns an error for an invalid pattern of [Ignored].
func CheckPatterns(patterns []string) error {
	for i, p := range patterns {
		if p == "" || !doublestar.ValidatePattern(p) {
			return fmt.Errorf("pattern %d: %w: %q is not a pattern of github.com/bmatcuk/doublestar", i, fs.ErrInvalid, p)
		}
	}
	return nil
}
