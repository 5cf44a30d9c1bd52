// Package visible makes text from a sandbox safe to display: it escapes characters that a
// terminal interprets or that a reader cannot see.
//
// Line breaks and tabs stay. Control characters become \x1b, invalid bytes \xff. Characters
// that are invisible or change the direction of text become <U+202E>. A variation selector or a
// joiner directly after a symbol stays: it belongs to an emoji.
package visible

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns text with all hidden characters escaped.
func Text(text string) string {
	var b bytes.Buffer
	w := NewWriter(&b)
	_, _ = io.WriteString(w, text) // a buffer never fails
	_ = w.Flush()
	return b.String()
}

// Line returns text as one line: line breaks and tabs become \n and \t.
func Line(text string) string {
	return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(Text(text))
}

// Writer escapes hidden characters in text that is written to it. Only one goroutine at a time
// may use it.
type Writer struct {
	w       io.Writer
	partial []byte // an incomplete character
	last    rune   // the previous character
	out     []byte
}

// NewWriter returns a Writer that writes to w, at most once for each Write.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes text. It keeps an incomplete character until the rest follows.
func (w *Writer) Write(p []byte) (int, error) {
	text := p
	if len(w.partial) > 0 {
		text = append(w.partial, p...)
	}
	w.out = w.out[:0]
	for len(text) > 0 && utf8.FullRune(text) {
		r, size := utf8.DecodeRune(text)
		w.add(r, text[:size])
		text = text[size:]
	}
	w.partial = append(w.partial[:0], text...)
	return len(p), w.pass()
}

// Flush writes the bytes of an incomplete character, escaped.
func (w *Writer) Flush() error {
	w.out = w.out[:0]
	for i := range w.partial {
		w.add(utf8.RuneError, w.partial[i:i+1])
	}
	w.partial = w.partial[:0]
	return w.pass()
}

func (w *Writer) pass() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.w.Write(w.out)
	return err
}

// add appends a character with this encoding to the output, escaped if it is hidden.
func (w *Writer) add(r rune, encoded []byte) {
	switch {
	case r == utf8.RuneError && len(encoded) == 1:
		w.out = fmt.Appendf(w.out, `\x%02x`, encoded[0])
	case !hidden(r) || joins(w.last, r):
		w.out = append(w.out, encoded...)
		w.last = r
		return
	case r < utf8.RuneSelf:
		w.out = fmt.Appendf(w.out, `\x%02x`, r)
	default:
		w.out = fmt.Appendf(w.out, "<U+%04X>", r)
	}
	w.last = 0
}

// hidden reports whether a terminal interprets a character or shows nothing for it.
func hidden(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < utf8.RuneSelf:
		return r < ' ' || r == 0x7f
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp,
		unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

const (
	zeroWidthJoiner = 0x200d
	textSelector    = 0xfe0e
	emojiSelector   = 0xfe0f
	information     = 0x2139 // an emoji with the category of a letter
)

// joins reports whether r belongs to an emoji that last is or ends.
func joins(last, r rune) bool {
	symbol := last >= utf8.RuneSelf && unicode.IsSymbol(last) || last == information
	switch r {
	case textSelector, emojiSelector:
		return symbol
	case zeroWidthJoiner:
		return symbol || last == emojiSelector
	}
	return false
}
