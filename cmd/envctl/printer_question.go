package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/cmd/envctl/internal/term"
	"github.com/agentenv-dev/agentenv/internal/visible"
	"github.com/agentenv-dev/agentenv/runnerscripts"
)

// Bounds of a question on the screen.
const (
	mostOptions     = 20
	mostFields      = 20
	mostRows        = 20  // of a text
	mostCommandRows = 100 // of a text of what executes commands
	mostBlanks      = 40  // in a row
	mostName        = 100 // characters of an option's name
	mostHeld        = 256 // events
)

// mark begins every row of foreign text in a question, and no other row.
const mark = "  │ "

// prompt is a question to the user: its rows, and the line on which the user answers.
type prompt struct {
	most  int // the maximum of rows of a text
	title string
	rows  func(*questionText)
	line  string
}

// question shows a prompt and holds other events back until it is answered: the agent's output
// below a question could look like another question.
func (p *textPrinter) question(about prompt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = &about
	p.doing.status.Hide(true)
	p.ask()
}

// again says why an answer is invalid, and shows the input line again.
func (p *textPrinter) again(problem error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Ignore the error: a question that is not shown gets no answer.
	_ = p.err.Print(term.Plain(problem.Error()+"\n"), term.Plain(p.asked.line))
}

// answered prints the events that were held back since the question was shown.
func (p *textPrinter) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = nil
	p.doing.status.Hide(false)
	_ = p.release() // the next event reports the error
}

// denies makes the printer add to the denial of a request the flags that would have allowed it.
func (p *textPrinter) denies(request, flags string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.denied.Put(request, flags, len(flags))
}

// release prints the events that were held back. The caller holds mu.
func (p *textPrinter) release() error {
	var errs []error
	for _, ev := range p.held {
		errs = append(errs, p.show(ev))
		p.doing.event(ev)
	}
	p.held, p.heldSize = nil, 0
	return errors.Join(errs...)
}

// ask prints the open question. The caller holds mu.
func (p *textPrinter) ask() {
	_ = p.endLine()
	q := &questionText{width: p.err.Width() - utf8.RuneCountInString(mark) - 1, most: p.asked.most}
	q.add(term.Bold(p.asked.title))
	p.asked.rows(q)
	q.add(term.Plain("\n" + p.asked.line))
	// Ignore the error: a question that is not shown gets no answer.
	_ = p.err.Print(q.spans...)
}

// permissionPrompt returns the prompt that asks whether a tool may be called. Paths in the
// workspace are shown relative to it. always offers the answers that hold in later sessions.
func permissionPrompt(req runnerscripts.PermissionRequest, workspace string, always bool) prompt {
	most := mostRows
	if req.ToolCall.Kind == runnerscripts.ToolExecute {
		most = mostCommandRows
	}
	words := "number, y, n, "
	if always {
		words += answerAlways + ", " + answerNever + ", "
	}
	return prompt{
		most: most, title: "Allow?", line: words + "Enter = " + onEnter(req.Options) + ", or what the agent should do instead: ",
		rows: func(q *questionText) {
			q.call(req.ToolCall, workspace)
			if req.MayDeny != "" {
				q.hide("it may be what the rule %s denies", visible.Line(req.MayDeny))
			}
			q.options(req.Options)
		},
	}
}

// onEnter describes the option that an empty answer chooses.
func onEnter(options []runnerscripts.PermissionOption) string {
	if i := rejection(options); i >= 0 {
		return fmt.Sprintf("%d (%s)", i+1, options[i].Kind.Effect())
	}
	return runnerscripts.RejectOnce.Effect()
}

// questionText builds the text of a question.
type questionText struct {
	width int // of a row, in columns
	most  int // rows of a text
	spans []term.Span
}

func (q *questionText) add(s ...term.Span) { q.spans = append(q.spans, s...) }

// hide adds a row about text that is not shown. No foreign text can imitate the row.
func (q *questionText) hide(format string, args ...any) {
	q.add(term.Plain("\n  "), term.Red("["+fmt.Sprintf(format, args...)+"]"))
}

// foreign adds a text of the agent. It marks every row, and breaks rows at the width of the
// screen. It hides the middle of a text with too many rows. If field is set, it indents all rows
// but the first.
func (q *questionText) foreign(text string, field bool) {
	var end []string // the last rows that are not shown yet, at most half of the maximum
	n, hidden, size := 0, 0, 0
	for row := range wrap(blanksCounted(visible.Text(text)), q.width, field) {
		if n++; n <= q.most/2 {
			q.add(term.Plain("\n"+mark), term.Dim(row))
			continue
		}
		if end = append(end, row); len(end) > q.most-q.most/2 {
			hidden, size = hidden+1, size+len(end[0])
			end = append(end[:0], end[1:]...)
		}
	}
	if hidden > 0 {
		q.hide("%s in %s are not shown", plural(size, "byte"), plural(hidden, "row"))
	}
	for _, row := range end {
		q.add(term.Plain("\n"+mark), term.Dim(row))
	}
}

// call adds a tool call: its changes of files, and the input that they do not show already.
func (q *questionText) call(call runnerscripts.ToolCall, workspace string) {
	title := firstOf(call.Title, call.Name)
	paths := pathsOf(call)
	for _, path := range paths {
		if before, ok := strings.CutSuffix(title, " "+path); ok {
			title = before + " " + within(path, workspace)
			break
		}
	}
	q.foreign(title, false)
	shown := make(map[string]bool) // values of fields that only repeat a change
	switch diffs := diffsOf(call); {
	case len(call.RawInput) == 0:
		q.content(call.Content, workspace)
	case len(diffs) > 0:
		q.content(diffs, workspace)
		for _, d := range diffs[:min(len(diffs), mostFields)] {
			shown[d.Path], shown[d.NewText] = true, true
			if d.OldText != nil {
				shown[*d.OldText] = true
			}
		}
	}
	q.input(call.RawInput, func(key, text string) (string, bool) {
		if shown[text] && slices.Contains(changeFields(), key) {
			return "", false
		}
		if slices.Contains(paths, text) {
			text = within(text, workspace)
		}
		return text, true
	})
}

// changeFields returns the names of the fields in which tools take a change of a file.
func changeFields() []string {
	return []string{
		"file_path", "filePath", "path", "content",
		"old_string", "oldString", "new_string", "newString",
	}
}

// options adds the possible answers.
func (q *questionText) options(options []runnerscripts.PermissionOption) {
	for i, o := range options {
		if i == mostOptions {
			q.hide("%d more options cannot be chosen", len(options)-i)
			break
		}
		effect := o.Kind.Effect()
		if effect == "" {
			effect = "cannot be chosen: its effect is not known"
		}
		q.add(term.Plain(fmt.Sprintf("\n  %d  %s", i+1, effect)))
		q.foreign(fmt.Sprintf("the agent calls it %q", cut(o.Name, mostName)), false)
	}
}

// diffsOf returns the changes of files that a tool call shows.
func diffsOf(call runnerscripts.ToolCall) []runnerscripts.ToolCallContent {
	var list []runnerscripts.ToolCallContent
	for _, c := range call.Content {
		if c.Type == "diff" {
			list = append(list, c)
		}
	}
	return list
}

// pathsOf returns the paths of the files that a tool call names. It returns none for a command:
// a path in a command is executed.
func pathsOf(call runnerscripts.ToolCall) []string {
	if call.Kind == runnerscripts.ToolExecute {
		return nil
	}
	var list []string
	for _, l := range call.Locations {
		list = append(list, l.Path)
	}
	for _, c := range diffsOf(call) {
		list = append(list, c.Path)
	}
	return list
}

// within returns a path relative to the workspace, if it is plainly inside.
func within(file, workspace string) string {
	if below, ok := strings.CutPrefix(file, workspace+"/"); ok && workspace != "" && path.Clean(file) == file {
		return below
	}
	return file
}

// input adds the input of a tool call field by field, so that a long field hides no other. show
// returns the text to display, and whether to display it.
func (q *questionText) input(raw json.RawMessage, show func(key, text string) (string, bool)) {
	if len(raw) == 0 {
		return
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('{') {
		q.foreign(string(raw), false)
		return
	}
	for n := 0; dec.More(); n++ {
		from := dec.InputOffset()
		key, err := dec.Token()
		var value json.RawMessage
		if err == nil && n < mostFields {
			err = dec.Decode(&value)
		}
		if err != nil || n == mostFields {
			q.hide("%d more bytes of fields are not shown", int64(len(raw))-from)
			return
		}
		text, shown := string(value), true
		if json.Unmarshal(value, &text) == nil { // only strings are replaced
			text, shown = show(fmt.Sprint(key), text)
		}
		if shown {
			q.foreign(fmt.Sprintf("%s: %s", cut(visible.Line(fmt.Sprint(key)), mostName), text), true)
		}
	}
}

// content adds the output that a tool call shows.
func (q *questionText) content(parts []runnerscripts.ToolCallContent, workspace string) {
	for i, part := range parts {
		if i == mostFields {
			q.hide("%d more parts are not shown", len(parts)-i)
			return
		}
		switch {
		case part.Type == "diff":
			var text strings.Builder
			text.WriteString("in " + within(part.Path, workspace))
			for line := range rows(part, term.Plain) {
				text.WriteString("\n" + line.Text)
			}
			q.foreign(text.String(), false)
		case part.Content != nil:
			q.foreign(part.Content.Text, true)
		}
	}
}

// cut replaces the middle of a text with more than most characters.
func cut(text string, most int) string {
	r := []rune(text)
	if len(r) <= most {
		return text
	}
	begin, end := string(r[:most/2]), string(r[len(r)-most/2:])
	return fmt.Sprintf("%s [%d bytes] %s", begin, len(text)-len(begin)-len(end), end)
}

// blanksCounted replaces long runs of blanks, which could hide text behind them, by their
// length.
func blanksCounted(text string) string {
	var b strings.Builder
	for text != "" {
		rest := strings.TrimLeftFunc(text, isBlank)
		blanks := text[:len(text)-len(rest)]
		if n := utf8.RuneCountInString(blanks); n > mostBlanks {
			blanks = fmt.Sprintf(" <%d blanks> ", n)
		}
		b.WriteString(blanks)
		word := rest
		if i := strings.IndexFunc(rest, isBlank); i >= 0 {
			word = rest[:i]
		}
		b.WriteString(word)
		text = rest[len(word):]
	}
	return b.String()
}

// isBlank reports whether r is white space or the blank Braille pattern.
func isBlank(r rune) bool { return unicode.IsSpace(r) || r == 0x2800 }

// wrap breaks text into rows of a width, with at least one character each. It counts two columns
// for all characters but ASCII, and writes tabs as \t. If hang is set, it indents all rows but
// the first, if the width leaves room for a character.
func wrap(text string, width int, hang bool) iter.Seq[string] {
	width = max(width, 2)
	hang = hang && width >= 4
	return func(yield func(string) bool) {
		var row strings.Builder
		columns := 0
		next := func() bool {
			more := yield(row.String())
			row.Reset()
			columns = 0
			if hang {
				row.WriteString("  ")
				columns = 2
			}
			return more
		}
		for _, r := range text {
			wide := 1
			if r == '\t' || r >= utf8.RuneSelf {
				wide = 2
			}
			if (r == '\n' || columns+wide > width) && !next() {
				return
			}
			switch r {
			case '\n':
				continue
			case '\t':
				row.WriteString(`\t`)
			default:
				row.WriteRune(r)
			}
			columns += wide
		}
		yield(row.String())
	}
}
