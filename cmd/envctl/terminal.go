package main

import (
	"os"
	"strings"

	"golang.org/x/term"
)

// isTerminal reports whether a stream of the program is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// style colors text on a terminal and leaves it alone elsewhere.
type style struct{ on bool }

// newStyle honors https://no-color.org.
func newStyle(stream any) style {
	return style{on: isTerminal(stream) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func (s style) dim(text string) string   { return s.paint("2", text) }
func (s style) bold(text string) string  { return s.paint("1", text) }
func (s style) red(text string) string   { return s.paint("31", text) }
func (s style) green(text string) string { return s.paint("32", text) }
func (s style) cyan(text string) string  { return s.paint("36", text) }

func (s style) paint(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// plain makes text from a sandbox harmless on a terminal: control characters
// other than line breaks and tabs are shown, not obeyed.
func plain(text string) string {
	if strings.IndexFunc(text, harmful) < 0 {
		return text
	}
	return strings.Map(func(r rune) rune {
		if harmful(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}

func harmful(r rune) bool {
	return r < 0x20 && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0
}
