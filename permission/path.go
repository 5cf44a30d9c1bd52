package permission

import (
	"cmp"
	"path"
	"regexp"
	"strings"
	"unicode"
)

// workspace returns the path of the workspace, also for rules that are checked before there is a sandbox.
func (at Place) workspace() string { return cmp.Or(at.Workspace, "/workspace") }

// linked matches paths through links of the kernel, which lead into the workspace: /proc/self/cwd/.env.
var linked = regexp.MustCompile(`^(/proc/.*/(cwd|root|fd)|/dev/fd)(/|$)`)

// clean returns a path without "." and "..", relative if it is below the workspace. dir is the
// working directory, empty for the workspace. ok is false for a path that cannot be judged: an
// empty one, and one that a program may expand or shorten. Symbolic links are not followed.
func (at Place) clean(dir, name string) (p string, ok bool) {
	if name == "" || name != trim(name) || strings.HasPrefix(name, "~") || strings.ContainsAny(name, "\x00\\$`") {
		return "", false
	}
	workspace := at.workspace()
	p = name
	if !path.IsAbs(p) {
		if !path.IsAbs(dir) {
			dir = path.Join(workspace, dir)
		}
		p = path.Join(dir, p)
	}
	switch p = path.Clean(p); {
	case p == workspace:
		return ".", true
	case linked.MatchString(p):
		return "", false
	}
	return strings.TrimPrefix(p, strings.TrimSuffix(workspace, "/")+"/"), true
}

// trim returns a path as programs such as Claude Code read it, without space around it.
func trim(name string) string {
	return strings.TrimFunc(name, func(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' })
}

// ofGit reports whether a path of the workspace is one of git's own files, which can hold commands.
func ofGit(p string) bool {
	for part := range strings.SplitSeq(p, "/") {
		if strings.EqualFold(part, ".git") {
			return true
		}
	}
	return false
}
