package agent

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// CheckFrontmatter returns an error that names the frontmatter keys that a program would
// ignore. where is the part of the profile, such as "profile.commands[0]".
func CheckFrontmatter(program, where string, front map[string]any, known ...string) error {
	for _, key := range slices.Sorted(maps.Keys(front)) {
		if !slices.Contains(known, key) {
			return Unsupported("leave out %s.frontmatter.%s: %s has nothing for it (it has: %s)",
				where, key, program, cmp.Or(strings.Join(known, ", "), "nothing of the kind"))
		}
	}
	return nil
}
