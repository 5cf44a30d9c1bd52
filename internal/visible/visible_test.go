package visible_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/internal/visible"
)

func TestEverythingIsVisible(t *testing.T) {
	for text, want := range map[string]string{
		"plain\n\ttext, déjà vu, 日本語, 👍 ⚠️": "plain\n\ttext, déjà vu, 日本語, 👍 ⚠️",
		"\x1b]52;c;x\x07\x1b[2J":            `\x1b]52;c;x\x07\x1b[2J`,
		"good\rbad\x00\x7f\b":               `good\x0dbad\x00\x7f\x08`,
		"c1 \u009b2J \u0085":                "c1 <U+009B>2J <U+0085>",
		"not UTF-8 \x9b \xff\xc3":           `not UTF-8 \x9b \xff\xc3`,
		"\xed\xa0\x80":                      `\xed\xa0\x80`,
		"a\u202eb\u2066c\u200f\u061c":       "a<U+202E>b<U+2066>c<U+200F><U+061C>",
		"\u200b\u200c\u2060\ufeff\u180e":    "<U+200B><U+200C><U+2060><U+FEFF><U+180E>",
		"\u2028\u2029\ufff9\u00ad":          "<U+2028><U+2029><U+FFF9><U+00AD>",
		"\U000e0041\u3164\u034f":            "<U+E0041><U+3164><U+034F>",
		"👩\u200d💻 ❤\ufe0f\u200d🔥":           "👩\u200d💻 ❤\ufe0f\u200d🔥",
		"rm\u200d -rf 1\ufe0f":              "rm<U+200D> -rf 1<U+FE0F>",
		"👍\ufe0f\ufe0f\u200d\u200d":         "👍\ufe0f<U+FE0F><U+200D><U+200D>",
	} {
		if got := visible.Text(text); got != want {
			t.Errorf("Text(%q) = %q, want %q", text, got, want)
		}
	}
	if got := visible.Line("a\nb\tc\rd"); got != `a\nb\tc\x0dd` {
		t.Errorf("Line = %q", got)
	}
}

func TestAWriterPassesErrorsOn(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	if _, err := visible.NewWriter(w).Write([]byte("x")); err == nil {
		t.Error("no error")
	}
}

// FuzzWriter checks that the output has only harmless characters, that harmless characters
// stay, and that splitting the text does not change the result.
func FuzzWriter(f *testing.F) {
	for _, seed := range []string{"", "plain\n", "\x1b[2J\r", "\xe2\x80", "a\u202eb", "👩\u200d💻", "❤\ufe0f\u200d🔥", "\xff\u009b"} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		want := visible.Text(string(text))
		var got bytes.Buffer
		w := visible.NewWriter(&got)
		for rest := text; len(rest) > 0; {
			piece := rest[:min(len(rest), max(int(size), 1))]
			if n, err := w.Write(piece); n != len(piece) || err != nil {
				t.Fatalf("Write = %d, %v", n, err)
			}
			rest = rest[len(piece):]
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if got.String() != want {
			t.Errorf("in pieces of %d: %q, want %q", size, &got, want)
		}
		if again := visible.Text(want); again != want {
			t.Errorf("%q is not left alone: %q", want, again)
		}
		if !utf8.ValidString(want) {
			t.Errorf("%q is not UTF-8", want)
		}
		for i, r := range want {
			emoji := i > 0 && strings.ContainsRune("\u200d\ufe0e\ufe0f", r)
			if !emoji && r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Cs, unicode.Zl, unicode.Zp, unicode.Variation_Selector) {
				t.Errorf("%U arrives in %q", r, want)
			}
		}
	})
}

func TestOneByteAtATime(t *testing.T) {
	const text = "é\u202e\x1b[0m👍\ufe0f\xff"
	var got bytes.Buffer
	w := visible.NewWriter(&got)
	if _, err := io.Copy(struct{ io.Writer }{w}, iotest.OneByteReader(strings.NewReader(text))); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil || got.String() != visible.Text(text) {
		t.Errorf("%q, %v", &got, err)
	}
}
