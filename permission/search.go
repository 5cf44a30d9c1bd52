package permission

import (
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"
)

// searcher is a tool that searches folders.
type searcher struct {
	fields func(input) []json.RawMessage // which files it reads
	filter bool                          // they are as --glob of ripgrep
}

var searchers = map[string]searcher{
	"Glob": {fields: byPattern}, "glob": {fields: byPattern},
	"Grep": byFilter, "grep": byFilter, "search_file_content": byFilter, "grep_search": byFilter,
	"read_many_files": {fields: func(in input) []json.RawMessage { return []json.RawMessage{in.Include, in.Paths} }},
	"LS":              {fields: noFields}, "list": {fields: noFields}, "list_directory": {fields: noFields},
}

var byFilter = searcher{fields: func(in input) []json.RawMessage { return []json.RawMessage{in.Glob, in.Include} }, filter: true}

func byPattern(in input) []json.RawMessage { return []json.RawMessage{in.Pattern} }

func noFields(input) []json.RawMessage { return nil }

// search returns what a tool does that searches folders, the workspace if it names none.
func (p *Policy) search(folders []string, in input, s searcher) []action {
	folders = slices.DeleteFunc(folders, func(f string) bool { return f == "" })
	if len(folders) == 0 {
		folders = []string{"."}
	}
	var patterns []string
	for _, raw := range s.fields(in) {
		var one string
		var list []string
		switch {
		case len(raw) == 0:
		case json.Unmarshal(raw, &one) == nil && one != "":
			patterns = append(patterns, one)
		case json.Unmarshal(raw, &list) == nil:
			patterns = append(patterns, list...)
		default:
			return []action{{tool: Read, unclear: "the files that it reads cannot be told"}}
		}
	}
	if len(patterns) == 0 {
		patterns = []string{"**"}
	}
	var all []action
	for _, folder := range folders {
		base, ok := p.place.clean("", folder)
		if !ok || in.Cwd != "" && !path.IsAbs(folder) { // an agent may not know the field
			return []action{{tool: Read, unclear: "the path cannot be judged"}}
		}
		for _, pattern := range patterns {
			if s.filter {
				pattern = unfiltered(pattern, base)
			}
			all = append(all, p.sought(base, folder, pattern))
		}
	}
	return all
}

// alternatives are parts of a pattern such as {a,b}.
var alternatives = regexp.MustCompile(`\{[^{}]*\}`)

// upward matches alternatives that may lead out of a folder, such as {..,a}/b, .{.,x}/b, .{,x}./b and {/etc,a}.
var upward = regexp.MustCompile(`[{,](/|\.?[,}])|\.\.`)

// unfiltered returns a pattern of at least the paths below a folder, whose clean path is base, that a filter lets pass. A
// filter may exclude, agents may make several of one, and one with a folder can count from the workspace or from base.
func unfiltered(filter, base string) string {
	switch {
	case strings.ContainsAny(filter, "! \t\n"), strings.Contains(alternatives.ReplaceAllString(filter, ""), ","),
		strings.HasPrefix(filter, "/"), strings.Contains(filter, "/") && base != ".":
		return "**"
	case !strings.Contains(filter, "/"):
		return "**/" + filter
	}
	return filter
}

// sought returns what it means to look for the files of a pattern below a folder, whose clean path is
// base.
func (p *Policy) sought(base, folder, pattern string) action {
	joined := pattern
	if !path.IsAbs(pattern) {
		joined = path.Join(folder, pattern)
	}
	glob, ok := p.place.clean("", joined)
	switch {
	case !ok, folders.MatchString(pattern) && upward.MatchString(pattern):
		return action{tool: Read, unclear: "the pattern cannot be judged"}
	case !strings.ContainsAny(glob, globChars):
		return action{tool: Read, path: glob}
	case !strings.Contains(pattern, "/"): // in all folders below
		glob, _ = p.place.clean("", path.Join(folder, "**", pattern))
	}
	if within, _, _ := strings.Cut(glob, "*"); path.IsAbs(glob) != path.IsAbs(base) || escapes(within) {
		base = glob // it leads out of the folder
	}
	return action{tool: Read, path: base, glob: glob}
}
