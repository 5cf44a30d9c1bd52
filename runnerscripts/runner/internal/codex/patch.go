package codex

import (
	"path/filepath"
	"strings"
)

// patchChanges returns the changes in the input of the tool apply_patch. The input does not
// contain the lines of deleted files.
func patchChanges(patch, cwd string) []change {
	var list []change
	for line := range strings.Lines(patch) {
		word, file, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " File: ")
		if verb, isHeader := strings.CutPrefix(word, "*** "); ok && isHeader {
			if !filepath.IsAbs(file) {
				file = filepath.Join(cwd, file)
			}
			list = append(list, change{Path: file, Kind: changeKind{Type: strings.ToLower(verb)}})
			continue
		}
		if len(list) == 0 || line == "" {
			continue
		}
		c := &list[len(list)-1]
		to, moves := strings.CutPrefix(line, "*** Move to: ")
		switch {
		case moves:
			to = strings.TrimSpace(to)
			if !filepath.IsAbs(to) {
				to = filepath.Join(cwd, to)
			}
			c.Kind.MovePath = to
		case c.Kind.Type == "add" && line[0] == '+':
			c.Diff += line[1:]
		case c.Kind.Type == "update" && !strings.HasPrefix(line, "***"):
			c.Diff += line
		}
	}
	return list
}
