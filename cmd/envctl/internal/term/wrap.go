package term

import (
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// columns returns how many columns of a terminal a text takes.
func columns(text string) int {
	n := 0
	for _, r := range text {
		n += columnsOf(r)
	}
	return n
}

func columnsOf(r rune) int {
	switch {
	case r == '\t':
		return 8 // at most
	case r < unicode.MaxLatin1:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// clip cuts a text to a number of columns.
func clip(text string, most int) string {
	if columns(text) <= most {
		return text
	}
	n := 1 // for the mark
	for i, r := range text {
		if n += columnsOf(r); n > most {
			return text[:i] + "…"
		}
	}
	return text
}

// Flow breaks text between words into lines of a width. A longer word gets its own, wider line.
// Blanks are kept, except at a line break. The first line begins with first, all others with
// hang.
func Flow(text []Span, width int, first, hang []Span) [][]Span {
	f := &flowing{width: width, hang: hang, line: first, used: columnsOfAll(first)}
	for _, s := range text {
		for rest := s.Text; rest != ""; {
			if after, ok := strings.CutPrefix(rest, "\n"); ok {
				f.place()
				f.next()
				rest = after
				continue
			}
			blank := isGap(rune(rest[0]))
			end := strings.IndexFunc(rest, func(r rune) bool { return r == '\n' || isGap(r) != blank })
			if end < 0 {
				end = len(rest)
			}
			piece := Span{s.style, rest[:end]}
			rest = rest[end:]
			if blank {
				f.place()
				f.gap = append(f.gap, piece)
			} else {
				f.word = append(f.word, piece)
			}
		}
	}
	f.place()
	return append(f.lines, f.line)
}

func isGap(r rune) bool { return r == ' ' || r == '\t' }

// flowing is the state of flow.
type flowing struct {
	width     int
	hang      []Span
	lines     [][]Span
	line      []Span // the current line
	used      int    // columns of line
	words     int    // number of words in line
	gap, word []Span // after line, not placed yet
}

// place appends the word to the line, or to the next line if it does not fit.
func (f *flowing) place() {
	if len(f.word) == 0 {
		return
	}
	if f.words > 0 && f.used+columnsOfAll(f.gap)+columnsOfAll(f.word) > f.width {
		f.next()
	}
	f.line = append(append(f.line[:len(f.line):len(f.line)], f.gap...), f.word...)
	f.used += columnsOfAll(f.gap) + columnsOfAll(f.word)
	f.words++
	f.gap, f.word = nil, nil
}

// next starts another line.
func (f *flowing) next() {
	f.lines = append(f.lines, f.line)
	f.line, f.used, f.words, f.gap = f.hang, columnsOfAll(f.hang), 0, nil
}

func columnsOfAll(spans []Span) int {
	n := 0
	for _, s := range spans {
		n += columns(s.Text)
	}
	return n
}
