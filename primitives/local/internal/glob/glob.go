// Package glob matches paths against the pattern lists of watch and pack options.
package glob

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Set is a list of patterns. The zero value matches nothing.
type Set struct {
	names []string // matched against the last part of a path
	paths []string // matched against the whole path
}

// Compile parses a list of patterns. A pattern without a slash matches a name at any depth, any
// other pattern the whole path. A slash at the start only makes a pattern match the whole path; a
// slash at the end has no effect. A malformed pattern is fs.ErrInvalid.
func Compile(field string, patterns []string) (Set, error) {
	var s Set
	for i, p := range patterns {
		bare := strings.TrimRight(p, "/")
		if bare == "" || !doublestar.ValidatePattern(bare) {
			return Set{}, fmt.Errorf("%w: the pattern %s[%d] %q is malformed; see github.com/bmatcuk/doublestar for the syntax", fs.ErrInvalid, field, i, p)
		}
		bare = strings.TrimPrefix(bare, "./")
		if strings.Contains(bare, "/") {
			s.paths = append(s.paths, strings.TrimLeft(bare, "/"))
		} else {
			s.names = append(s.names, bare)
		}
	}
	return s, nil
}

// Empty reports whether the set has no patterns.
func (s Set) Empty() bool { return len(s.names)+len(s.paths) == 0 }

// Match reports whether a pattern matches the relative slash path itself. The caller must match
// parent folders separately, on the way down.
func (s Set) Match(name string) bool {
	if len(s.names) > 0 {
		base := path.Base(name)
		for _, p := range s.names {
			if doublestar.MatchUnvalidated(p, base) {
				return true
			}
		}
	}
	for _, p := range s.paths {
		if doublestar.MatchUnvalidated(p, name) {
			return true
		}
	}
	return false
}
