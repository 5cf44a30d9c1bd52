// Package relink changes the targets of symbolic links in a folder that is copied to another path. A link that leads
// into the folder by an absolute path leads into the copy instead. It is the one treatment of links when a session
// attaches to a new sandbox, rewinds, forks or moves; archive.Relink does it for an archive.
package relink

import "strings"

// Target returns the target of a link in the copy at the path to of the folder from. Both are clean
// absolute paths. Relative targets and those outside of the folder stay.
func Target(target, from, to string) string {
	rest, ok := strings.CutPrefix(target, from)
	if !ok || rest != "" && rest[0] != '/' {
		return target
	}
	return to + rest
}
