package permission

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"mvdan.cc/sh/v3/syntax"
)

// globChars are the characters of patterns of file names.
const globChars = "*?[]{}"

// maxAlternatives limits the braces in a pattern: the time to match it doubles with each.
const maxAlternatives = 8

var (
	// characters is a set of a pattern, such as [!a-z] or [[:lower:]].
	characters = regexp.MustCompile(`\[[!^]?\]?(\[[:.=][^\]]*[:.=]\]|[^\]])*\]`)
	folders    = regexp.MustCompile(`\{.*/`)                  // that alternatives choose
	sequence   = regexp.MustCompile(`\{[^{},]*\.\.[^{},]*\}`) // of the shell, such as {a..f}
)

// overlaps reports whether a file may match both the pattern of a rule and another one, which is clean and may name the
// workspace by its absolute path.
func (at Place) overlaps(rule, pattern string) bool {
	if path.IsAbs(pattern) && !path.IsAbs(rule) {
		rule = path.Join(at.workspace(), rule)
	}
	return overlaps(rule, pattern)
}

// overlaps reports whether a file may match both the pattern of a rule and another pattern. In doubt it
// is true.
func overlaps(rule, pattern string) bool {
	pattern = sequence.ReplaceAllString(characters.ReplaceAllString(pattern, "?"), "*")
	rule, pattern = strings.ToLower(rule), strings.ToLower(pattern)
	switch {
	case !doublestar.ValidatePattern(pattern), strings.Count(pattern, "{") > maxAlternatives:
		return true
	case !strings.ContainsAny(pattern, globChars):
		return matchPath(rule, pattern)
	case folders.MatchString(pattern): // they may be anywhere: {,x}/etc, .{.,x}/y
		last := path.Base(pattern)
		return strings.Contains(rule, "{") || strings.Count(last, "{") != strings.Count(last, "}") || endsOverlap(path.Base(rule), last)
	case !strings.ContainsAny(rule, globChars):
		return matchPath(pattern, rule)
	case strings.HasPrefix(rule, "/") != strings.HasPrefix(pattern, "/"):
		return false
	}
	if !endsOverlap(rule, pattern) {
		return false
	}
	if strings.ContainsAny(rule+pattern, "{}") { // in which there may be folders
		return true
	}
	a, b := strings.Split(rule, "/"), strings.Split(pattern, "/")
	for {
		switch {
		case len(a) > 0 && a[0] == "**", len(b) > 0 && b[0] == "**":
			return true
		case len(a) == 0, len(b) == 0:
			return len(a) == len(b)
		case !endsOverlap(a[0], b[0]):
			return false
		}
		a, b = a[1:], b[1:]
	}
}

// endsOverlap reports whether what two patterns begin and end with may be the same.
func endsOverlap(a, b string) bool {
	switch {
	case !strings.ContainsAny(a, globChars):
		ok, err := doublestar.Match(b, a)
		return ok || err != nil
	case !strings.ContainsAny(b, globChars):
		return endsOverlap(b, a)
	}
	begin := func(p string) string { return p[:strings.IndexAny(p, globChars)] }
	end := func(p string) string { return p[strings.LastIndexAny(p, globChars)+1:] }
	return (strings.HasPrefix(begin(a), begin(b)) || strings.HasPrefix(begin(b), begin(a))) &&
		(strings.HasSuffix(end(a), end(b)) || strings.HasSuffix(end(b), end(a)))
}

// globOf returns the pattern that a word is, empty for a word that the shell makes otherwise.
func globOf(w *syntax.Word) string {
	var b strings.Builder
	for _, part := range w.Parts {
		var text string
		switch part := part.(type) {
		case *syntax.Lit:
			b.WriteString(part.Value)
			continue
		case *syntax.SglQuoted:
			text = part.Value
		case *syntax.DblQuoted:
			var ok bool
			if text, ok = doubleQuoted(part); !ok {
				return ""
			}
		default:
			return ""
		}
		if strings.ContainsAny(text, globChars) {
			return ""
		}
		b.WriteString(text)
	}
	return b.String()
}

// mayName reports whether words of a command that the shell makes, or that count from another folder,
// may name a file of a Read or Write rule.
func (r Rule) mayName(a action, at Place) bool {
	for _, w := range a.words {
		switch {
		case w.known && a.moved:
			if slices.ContainsFunc(w.tokens(), r.mayNameElsewhere) {
				return true
			}
		case w.known, a.innocent: // echo and the like open no file
		case w.glob == "":
			return true
		default:
			p, ok := at.clean("", w.glob)
			if !ok || at.overlaps(r.arg, p) || a.moved && overlaps("/"+r.arg, "/**/"+tail(w.glob)) {
				return true
			}
		}
	}
	return false
}

// mayNameElsewhere reports whether a path that counts from an unknown folder may name a file of a Read or Write rule.
func (r Rule) mayNameElsewhere(name string) bool {
	up := strings.HasPrefix(path.Clean(name), "../")
	end := tail(name)
	return end != "" && !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "-") &&
		(up || !strings.ContainsAny(r.arg, globChars)) && overlaps("/"+strings.TrimPrefix(r.arg, "/"), "/**/"+end)
}

// tail returns a path without the folders above that it begins with; empty for one that is only these.
func tail(name string) string {
	name = path.Clean(name)
	for up := true; up; {
		name, up = strings.CutPrefix(name, "../")
	}
	if name == "." || name == ".." {
		return ""
	}
	return name
}
