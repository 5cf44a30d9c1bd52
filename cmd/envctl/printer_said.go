package main

import (
	"regexp"
	"strings"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/internal/visible"
)

// maxSaid is how many bytes of an unfinished paragraph wait to be drawn: 64 KiB.
const maxSaid = 64 << 10

// said prints one message of an agent. If the output is no terminal, it prints text as it
// arrives. On a terminal it prints paragraph by paragraph, in lines that break between words;
// with styles it draws Markdown.
type said struct {
	out     *term.Output
	inLine  bool   // the last printed line has no line break
	text    string // not printed yet
	thought bool   // the text is a thought
	gap     bool   // a blank line precedes the text
	fence   string // the marks of the fenced block that continues in text
}

// add adds text to the message, and prints the paragraphs that are complete.
func (s *said) add(text string, thought bool) error {
	if !s.out.Terminal {
		s.inLine = !strings.HasSuffix(text, "\n")
		return s.out.Print(term.Plain(text))
	}
	s.text += text
	s.thought = thought
	end := len(s.text)
	if last := strings.LastIndexByte(s.text, '\n'); last >= 0 {
		end = last + 1 // a line is cut only if it is too long itself
	}
	if len(s.text) < maxSaid {
		end = 0
		if strings.Contains(text, "\n") || strings.HasSuffix(s.text[:len(s.text)-len(text)], "\n") {
			end, _ = finished(s.text, s.fence)
		}
	}
	return s.draw(end)
}

// show prints all text so far.
func (s *said) show() error { return s.draw(len(s.text)) }

// end prints the rest of the message and ends it.
func (s *said) end() error {
	err := s.show()
	s.gap, s.fence = false, ""
	if s.inLine {
		s.inLine = false
		err = s.out.Println()
	}
	return err
}

// draw prints the text before end.
func (s *said) draw(end int) error {
	text := s.text[:end]
	s.text = s.text[end:]
	if s.fence != "" { // its beginning was shown before
		code, rest, closed := cutFence(text, s.fence)
		if err := s.print(code, codeLines); err != nil || !closed {
			return err
		}
		text = rest
	}
	s.fence = ""
	if s.out.Colors && !s.thought {
		_, s.fence = finished(text, "")
	}
	return s.print(text, s.lines)
}

// print prints text as the lines that lines returns for it.
func (s *said) print(text string, lines func(string) [][]term.Span) error {
	body := strings.Trim(text, "\n")
	if strings.TrimSpace(body) == "" {
		s.gap = s.gap || text != ""
		return nil
	}
	var spans []term.Span
	if s.gap || strings.HasPrefix(text, "\n") {
		spans = append(spans, term.Plain("\n"))
	}
	s.gap = strings.HasSuffix(text, "\n\n")
	for _, line := range lines(body) {
		spans = append(append(spans, line...), term.Plain("\n"))
	}
	return s.out.Print(spans...)
}

func (s *said) lines(text string) [][]term.Span {
	switch {
	case s.thought:
		return term.Flow([]term.Span{term.Dim(visible.Text(text))}, s.out.Width(), nil, nil)
	case !s.out.Colors:
		return term.Flow(term.Plains(visible.Text(text)), s.out.Width(), nil, nil)
	}
	return term.DrawMarkdown(text, s.out.Width())
}

// codeLines returns the lines of a part of a fenced block.
func codeLines(text string) [][]term.Span {
	var lines [][]term.Span
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, []term.Span{term.Plain("  "), term.Cyan(visible.Text(line))})
	}
	return lines
}

var listItem = regexp.MustCompile(`^\s*([-*+]|\d{1,9}[.)])(\s|$)`)

// finished returns the end of the last complete paragraph, list or fenced block, and the marks
// of the fenced block that is open at the end of text. If fence is not empty, text starts inside
// the fenced block with these marks.
func finished(text, fence string) (end int, open string) {
	list, begin := false, true
	for at := 0; at < len(text); {
		line, _, whole := strings.Cut(text[at:], "\n")
		blank, indented := strings.TrimSpace(line) == "", strings.TrimLeft(line, " \t") != line
		if begin && !blank && fence == "" {
			begin = false
			if !list || !indented { // another block
				end, list = at, listItem.MatchString(line)
			}
		}
		at += len(line) + 1
		mark := fenceOf(line)
		switch {
		case fence != "":
			if closes(line, fence) {
				fence, begin = "", !list
			}
		case mark != "":
			fence = mark
		case blank:
			begin = true
		}
		if !whole {
			break
		}
		if begin && !list && fence == "" {
			end = at
		}
	}
	return end, fence
}

// closes reports whether a line ends the fenced block that began with marks.
func closes(line, fence string) bool {
	mark := fenceOf(line)
	return strings.HasPrefix(mark, fence) && strings.TrimSpace(line) == mark
}

// cutFence cuts text at the end of the fenced block in which the text starts. The line that ends
// the block is in neither part.
func cutFence(text, fence string) (code, rest string, closed bool) {
	at := 0
	for line := range strings.Lines(text) {
		if closes(strings.TrimSuffix(line, "\n"), fence) {
			return text[:at], text[at+len(line):], true
		}
		at += len(line)
	}
	return text, "", false
}

// fenceOf returns the marks of a line that starts or ends a fenced block; empty for other lines.
func fenceOf(line string) string {
	line = strings.TrimLeft(line, " \t")
	for _, mark := range []string{"`", "~"} {
		info := strings.TrimLeft(line, mark)
		if marks := line[:len(line)-len(info)]; len(marks) >= 3 && (mark == "~" || !strings.Contains(info, mark)) {
			return marks
		}
	}
	return ""
}
