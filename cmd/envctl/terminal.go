package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/agentenv-dev/agentenv/internal/visible"
)

// isTerminal reports whether a stream of the program is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// output is standard output or standard error. On a terminal it makes control characters
// visible; the only escape sequences that it writes are those of a span's style. Elsewhere it
// writes every byte unchanged.
type output struct {
	file     io.Writer
	terminal bool
	colors   bool
	status   *status // drawn on the same terminal; may be nil

	mu   sync.Mutex
	late *backlog        // writes to file in the background; nil if Write does
	text *visible.Writer // writes to buf
	buf  bytes.Buffer
}

// newOutput returns an output that writes to file. It honors https://no-color.org.
func newOutput(file io.Writer) *output {
	o := &output{file: file, terminal: isTerminal(file)}
	o.colors = o.terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	o.text = visible.NewWriter(&o.buf)
	return o
}

// Write writes text without a style.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.terminal {
		return o.put(p)
	}
	_, _ = o.text.Write(p) // writes to a buffer do not fail
	if err := o.pass(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// width returns how many characters a line of the terminal has; 80 if there is no terminal.
func (o *output) width() int {
	if f, ok := o.file.(*os.File); ok && o.terminal {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// pass writes the content of the buffer. The caller holds mu.
func (o *output) pass() error {
	defer o.buf.Reset()
	if o.buf.Len() == 0 {
		return nil
	}
	_, err := o.put(o.buf.Bytes())
	return err
}

func (o *output) put(text []byte) (int, error) {
	if o.late != nil {
		return o.late.Write(text)
	}
	return direct{o}.Write(text)
}

// direct writes to the file of an output.
type direct struct{ *output }

func (d direct) Write(text []byte) (n int, err error) {
	if d.status != nil {
		n, err = d.status.write(d.file, text)
	} else {
		n, err = d.file.Write(text)
	}
	if errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("%w: %w", errNoReader, err)
	}
	return n, err
}

// errNoReader is the error of an output whose reader is gone.
var errNoReader = errors.New("nobody reads the output any more")

// inBackground makes writes to a pipe or socket return before the reader has taken them. After
// enough is closed, a write to a full backlog fails.
func (o *output) inBackground(enough <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if mode := modeOf(o.file); o.late == nil && mode&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		o.late = newBacklog(direct{o}, enough)
	}
}

// end writes an incomplete last character, and waits until the backlog is written or enough is
// closed. The file stays open.
func (o *output) end(enough <-chan struct{}) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.text.Flush()
	err := o.pass()
	if o.late != nil {
		err = errors.Join(err, o.late.flush(enough))
	}
	return err
}

// span is text in one style; an empty style is plain text.
type span struct{ style, text string }

func plain(text string) span { return span{"", text} }
func dim(text string) span   { return span{"2", text} }
func bold(text string) span  { return span{"1", text} }
func red(text string) span   { return span{"31", text} }
func green(text string) span { return span{"32", text} }
func cyan(text string) span  { return span{"36", text} }

// plains returns spans without a style.
func plains(texts ...string) []span {
	spans := make([]span, len(texts))
	for i, text := range texts {
		spans[i] = plain(text)
	}
	return spans
}

// print writes spans with their styles, in one write.
func (o *output) print(spans ...span) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range spans {
		switch {
		case !o.terminal:
			o.buf.WriteString(s.text)
		case s.style == "" || s.text == "":
			_, _ = io.WriteString(o.text, s.text)
		default:
			_ = o.text.Flush() // flush the text before the span, which has no style
			o.buf.WriteString(o.styled(s))
		}
	}
	return o.pass()
}

// styled returns a span with its escape sequences, if the terminal shows styles.
func (o *output) styled(s span) string {
	text := visible.Text(s.text)
	if !o.colors {
		return text
	}
	return "\x1b[" + s.style + "m" + text + "\x1b[0m"
}

// println is print with a line break.
func (o *output) println(spans ...span) error { return o.print(append(spans, plain("\n"))...) }

// row prints one line. On a terminal it makes line breaks in the spans visible.
func (o *output) row(spans ...span) error { return o.println(o.cells(spans)...) }

func (o *output) cells(spans []span) []span {
	if !o.terminal {
		return spans
	}
	cells := make([]span, len(spans))
	for i, s := range spans {
		cells[i] = span{s.style, visible.Line(s.text)}
	}
	return cells
}

// table prints rows in aligned columns. On a terminal it fits the table to the width: the last
// column continues on the next line, or the widest column is cut.
func (o *output) table(rows ...[]span) error {
	width := -1
	if o.terminal {
		width = o.width()
	}
	for i, row := range rows {
		rows[i] = o.cells(row)
	}
	for _, line := range tableLines(rows, width) {
		if err := o.println(line...); err != nil {
			return err
		}
	}
	return nil
}

// tableLines returns the lines of a table. A negative width means no limit.
func tableLines(rows [][]span, width int) [][]span {
	var widths []int
	for _, row := range rows {
		for n, cell := range row {
			if n == len(widths) {
				widths = append(widths, 0)
			}
			widths[n] = max(widths[n], columns(cell.text))
		}
	}
	if width >= 0 {
		widths = fit(widths, width)
	}
	var lines [][]span
	for _, row := range rows {
		for more := row; more != nil; {
			var line []span
			line, more = tableLine(more, widths)
			lines = append(lines, line)
		}
	}
	return lines
}

// leastLast is the minimum width of the last column of a table, if it continues on the next
// line.
const leastLast = 24

// fit makes columns narrower until the row fits.
func fit(widths []int, width int) []int {
	const least = 8
	over := 2*(len(widths)-1) - width
	for _, w := range widths {
		over += w
	}
	if last := len(widths) - 1; over > 0 && widths[last]-over >= leastLast {
		widths[last] -= over
		return widths
	}
	for ; over > 0; over-- {
		widest := 0
		for n := range widths {
			if widths[n] > widths[widest] {
				widest = n
			}
		}
		if widths[widest] <= least {
			break
		}
		widths[widest]--
	}
	return widths
}

// tableLine returns one line of a row, and the rest of its last column for the next line; nil if
// there is no rest.
func tableLine(row []span, widths []int) (line, more []span) {
	for n, cell := range row {
		last := n == len(widths)-1
		if over := columns(cell.text) > widths[n]; over && last && widths[n] >= leastLast {
			head, rest := cutWords(cell.text, widths[n])
			more = make([]span, len(row))
			more[n] = span{cell.style, rest}
			cell.text = head
		} else if over {
			cell.text = clip(cell.text, widths[n])
		}
		line = append(line, cell)
		if n < len(row)-1 {
			line = append(line, plain(strings.Repeat(" ", widths[n]-columns(cell.text)+2)))
		}
	}
	return line, more
}

// cutWords cuts text after the last word that fits, or inside a word that is too long.
func cutWords(text string, width int) (head, rest string) {
	end, used := 0, 0
	for i, r := range text {
		if used > width/2 && r == ' ' {
			head, rest = text[:i], text[i+1:]
		}
		if used += columnsOf(r); used > width {
			break
		}
		end = i + utf8.RuneLen(r)
	}
	if head == "" {
		head, rest = text[:end], text[end:]
	}
	return head, rest
}
