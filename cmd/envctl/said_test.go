package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

const spoken = "# The plan\n\nWe *must* mend `parse.go`, which is **wrong** in some places.\n\n" +
	"1. read it\n2. mend it\n\n| file | lines |\n|---|---|\n| a.go | 10 |\n\n```go\nfunc main() {\n\n}\n```\n\n> as [you](https://example.com/x \"tip\") said\n\nDone."

// says prints a message in pieces of size bytes, and returns what the terminal shows.
func says(t *testing.T, d *display, text string, size int) string {
	t.Helper()
	show := newApp(nil, d.tty, d.tty).newPrinter(false)
	for n := 0; n < len(text); n += size {
		if err := show.event(chunk(t, "m", text[n:min(n+size, len(text))])); err != nil {
			t.Fatal(err)
		}
	}
	if err := show.finish(); err != nil {
		t.Fatal(err)
	}
	return d.text()
}

// Markdown is drawn in lines that fit, however the text is cut into pieces.
func TestMarkdownOnATerminal(t *testing.T) {
	const want = `The plan

We must mend parse.go, which is
wrong in some places.

1. read it
2. mend it

file  lines
a.go  10

  func main() {
  
  }

> as you (https://example.com/x
> "tip") said

Done.
`
	t.Setenv("NO_COLOR", "")
	for _, size := range []int{1, 7, len(spoken)} {
		if got := says(t, newDisplay(t, 34), spoken, size); got != want {
			t.Errorf("in pieces of %d:\n%s\nwant\n%s", size, got, want)
		}
	}
}

func TestLinesAreAsWideAsTheTerminal(t *testing.T) {
	for text, want := range map[string]string{
		"one two":                   "one two",
		"one four":                  "one|four",
		"a\n  b c d e f":            "a|  b c d|e f",
		"seven77 longer88":          "seven77|longer88",
		"日本 語 x":                    "日本 語|x",
		"e\u0301e\u0301e\u0301 two": "e\u0301e\u0301e\u0301 two",
	} {
		var got []string
		for _, line := range term.Flow([]term.Span{term.Plain(text)}, 7, nil, nil) {
			var row strings.Builder
			for _, s := range line {
				row.WriteString(s.Text)
			}
			got = append(got, row.String())
		}
		if strings.Join(got, "|") != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// Without styles the text is unchanged, except for the line breaks.
func TestPlainTextOnATerminal(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	d := newDisplay(t, 20)
	got := says(t, d, "Some **bold** words that are many.\n\n```\n  code\n```\nhttps://example.com/a/long/address end", 3)
	want := "Some **bold** words\nthat are many.\n\n```\n  code\n```\nhttps://example.com/a/long/address\nend\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A pipe gets the agent's text unchanged.
func TestPipedTextIsUnchanged(t *testing.T) {
	var out, errOut bytes.Buffer
	show := newApp(nil, &out, &errOut).newPrinter(false)
	for _, piece := range []string{spoken[:9], spoken[9:100], spoken[100:]} {
		if err := show.event(chunk(t, "m", piece)); err != nil {
			t.Fatal(err)
		}
	}
	if err := show.finish(); err != nil || out.String() != spoken+"\n" {
		t.Errorf("%v: %q", err, out.String())
	}
}

// A paragraph is printed when it is finished, and the rest of a message when its snapshot
// arrives.
func TestParagraphsAreShownAsTheyAreFinished(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	d := newDisplay(t, 40)
	show := newApp(nil, d.tty, d.tty).newPrinter(false)
	for _, step := range []struct{ text, want string }{
		{"One", ""},
		{" line.\n", ""},
		{"\n", "One line.\n"},
		{"- a\n", "One line.\n"},
		{"\n  more of a\n", "One line.\n"},
		{"\n", "One line.\n"},
		{"```", "One line.\n\n• a\n  \n  more of a\n"},
		{"\nx\n\ny\n", "One line.\n\n• a\n  \n  more of a\n"},
		{"```\n", "One line.\n\n• a\n  \n  more of a\n\n  x\n  \n  y\n"},
		{"end", "One line.\n\n• a\n  \n  more of a\n\n  x\n  \n  y\n"},
	} {
		if err := show.event(chunk(t, "m", step.text)); err != nil {
			t.Fatal(err)
		}
		if got := d.text(); got != step.want {
			t.Errorf("after %q the terminal shows\n%q\nwant\n%q", step.text, got, step.want)
		}
	}
	whole := chunk(t, "m", "whatever")
	whole.Payload = bytes.Replace(whole.Payload, []byte(`"blockId"`), []byte(`"snapshot":true,"blockId"`), 1)
	if err := show.event(whole); err != nil {
		t.Fatal(err)
	}
	if got := d.text(); !strings.HasSuffix(got, "  y\nend\n") {
		t.Errorf("after the snapshot the terminal shows\n%s", got)
	}
}

// A thought is not drawn as Markdown.
func TestThoughtsOnATerminal(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	d := newDisplay(t, 40)
	thought := chunk(t, "m", "I *think*\n\n")
	thought.Type = runnerscripts.TypeAgentThought
	if err := newApp(nil, d.tty, d.tty).newPrinter(false).event(thought); err != nil {
		t.Fatal(err)
	}
	d.shows("I *think*\n")
}

// A paragraph that does not end is printed in parts.
func TestAnEndlessParagraphIsShown(t *testing.T) {
	var out bytes.Buffer
	s := said{out: term.NewOutput(&out)}
	s.out.Terminal = true
	for range 3 {
		if err := s.add(strings.Repeat("x", maxSaid/2), false); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(out.String(), "x"); n != maxSaid || len(s.text) != maxSaid/2 {
		t.Errorf("%d characters are shown, %d wait", n, len(s.text))
	}
}

// A code block that is printed in parts looks like one block, whether the agent pauses in it or
// it is too long to hold back.
func TestABlockOfCodeIsShownInPieces(t *testing.T) {
	styles := regexp.MustCompile(`\x1b\[[0-9;]*m`)
	x := strings.Repeat("x", 60) + "\n"
	for name, tt := range map[string]struct{ begin, indent, end, want string }{
		"fenced":           {"```go\na\n", "", "```\n", "  a\n"},
		"in a list":        {"1. one\n\n   ```\n   a\n", "   ", "   ```\n", "1. one\n   \n     a\n"},
		"with marks in it": {"````\n```\n", "", "````\n", "  ```\n"},
		"first line only":  {"```go\n", "", "```\n", ""},
	} {
		for size, lines := range map[string]int{"pauses": 0, "long": maxSaid/len(x) + 1} {
			t.Run(name+", "+size, func(t *testing.T) {
				var out bytes.Buffer
				s := said{out: term.NewOutput(&out)}
				s.out.Terminal, s.out.Colors = true, true
				for _, text := range []string{
					tt.begin + strings.Repeat(tt.indent+x, lines), tt.indent + "# a *b*\n\n" + tt.indent + "c\n",
					tt.end + "\nNo *code*.", "\n\n```\nd\n```\n",
				} {
					if err := s.add(text, false); err != nil {
						t.Fatal(err)
					}
					if lines > 0 {
						continue
					}
					if err := s.show(); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.end(); err != nil {
					t.Fatal(err)
				}
				want := tt.want + strings.Repeat("  "+tt.indent+x, lines) +
					"  " + tt.indent + "# a *b*\n  \n  " + tt.indent + "c\n\nNo code.\n\n  d\n"
				if got := styles.ReplaceAllString(out.String(), ""); got != want {
					t.Errorf("got\n%s\nwant\n%s", strings.ReplaceAll(got, x, "x"), strings.ReplaceAll(want, x, "x"))
				}
			})
		}
	}
}

// FuzzMarkdown checks that nothing but text is drawn, and that no word is lost.
func FuzzMarkdown(f *testing.F) {
	for _, seed := range []string{
		spoken, "&#27;[31m &#x1b;]8;;http://evil\a", "[x](javascript:\x1b[2J)", "<b\x1b>", "\x1b]8;;u\x07t", "a&#13;b &#0; &#8238;",
		"[ref]: http://hidden\n", "<!-- hidden -->\n\n<div>\nx\n</div>", "    indented\x9b", "- \n- - 1) x\n\t- y", "~~~a`\nb", "| a |\n|-|\n| \\| `x` | y |", "***a***_b_ ~~c~~",
		"![alt *x*](u 't')\\\nhard  \nbreak", "1234567890. x\n0) y", "> > a\nlazy\n***\n日本語テキスト",
	} {
		f.Add(seed, uint8(20))
	}
	f.Fuzz(func(t *testing.T, source string, width uint8) {
		var drawn strings.Builder
		for _, line := range term.DrawMarkdown(source, int(width)) {
			for _, s := range line {
				drawn.WriteString(s.Text)
			}
		}
		for _, r := range drawn.String() {
			if unicode.In(r, unicode.Cc, unicode.Cf) && r != '\t' && r != 0x200d {
				t.Errorf("%q is drawn of %q", r, source)
			}
		}
		if end, _ := finished(source, ""); end < 0 || end > len(source) {
			t.Errorf("finished at %d of %d", end, len(source))
		}
	})
}

// Some agents report the output of a command after their answer.
func TestALateResultIsPrintedWithItsCall(t *testing.T) {
	var out, errOut bytes.Buffer
	show := newApp(nil, &out, &errOut).newPrinter(false)
	content := func(text string) []runnerscripts.ToolCallContent {
		return []runnerscripts.ToolCallContent{{Type: "content", Content: &runnerscripts.Content{Type: "text", Text: text}}}
	}
	for _, ev := range []runnerscripts.Event{
		happens(t, runnerscripts.TypeToolCall, runnerscripts.ToolCall{ToolCallID: "1", Title: "ls", Status: runnerscripts.ToolInProgress}),
		happens(t, runnerscripts.TypeToolCallUpdate, runnerscripts.ToolCall{ToolCallID: "1", Status: runnerscripts.ToolCompleted}),
		happens(t, runnerscripts.TypeToolCall, runnerscripts.ToolCall{ToolCallID: "2", Title: "pwd", Status: runnerscripts.ToolCompleted, Content: content("/w")}),
		chunk(t, "m", "Done."),
		happens(t, runnerscripts.TypeToolCallUpdate, runnerscripts.ToolCall{ToolCallID: "1", Content: content("a.txt\nb.txt")}),
		happens(t, runnerscripts.TypeToolCallUpdate, runnerscripts.ToolCall{ToolCallID: "1", Content: content("a.txt\nb.txt")}),
		happens(t, runnerscripts.TypeToolCallUpdate, runnerscripts.ToolCall{ToolCallID: "2", Content: content("/w")}),
	} {
		if err := show.event(ev); err != nil {
			t.Fatal(err)
		}
	}
	const want = "→ ls\n→ pwd\n  /w\nDone.\n→ ls\n  a.txt\n  b.txt\n"
	if err := show.finish(); err != nil || out.String() != want {
		t.Errorf("%v: printed\n%s\nwant\n%s", err, out.String(), want)
	}
}
