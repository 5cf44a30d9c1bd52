package term

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

// IsTerminal reports whether a stream of the program is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Output is standard output or standard error. On a terminal it makes control characters
// visible; the only escape sequences that it writes are those of a span's style. Elsewhere it
// writes every byte unchanged.
type Output struct {
	File     io.Writer
	Terminal bool
	Colors   bool
	Status   *Status // drawn on the same terminal; may be nil

	mu   sync.Mutex
	late *backlog        // writes to file in the background; nil if Write does
	text *visible.Writer // writes to buf
	buf  bytes.Buffer
}

// NewOutput returns an output that writes to file. It honors https://no-color.org.
func NewOutput(file io.Writer) *Output {
	o := &Output{File: file, Terminal: IsTerminal(file)}
	o.Colors = o.Terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	o.text = visible.NewWriter(&o.buf)
	return o
}

// Write writes text without a style.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.Terminal {
		return o.put(p)
	}
	_, _ = o.text.Write(p) // writes to a buffer do not fail
	if err := o.pass(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Width returns how many characters a line of the terminal has; 80 if there is no terminal.
func (o *Output) Width() int {
	if f, ok := o.File.(*os.File); ok && o.Terminal {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// pass writes the content of the buffer. The caller holds mu.
func (o *Output) pass() error {
	defer o.buf.Reset()
	if o.buf.Len() == 0 {
		return nil
	}
	_, err := o.put(o.buf.Bytes())
	return err
}

func (o *Output) put(text []byte) (int, error) {
	if o.late != nil {
		return o.late.Write(text)
	}
	return direct{o}.Write(text)
}

// direct writes to the file of an output.
type direct struct{ *Output }

func (d direct) Write(text []byte) (n int, err error) {
	if d.Status != nil {
		n, err = d.Status.write(d.File, text)
	} else {
		n, err = d.File.Write(text)
	}
	if errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("%w: %w", ErrNoReader, err)
	}
	return n, err
}

// ErrNoReader is the error of an output whose reader is gone.
var ErrNoReader = errors.New("nobody reads the output any more")

// InBackground makes writes to a pipe or socket return before the reader has taken them. After
// enough is closed, a write to a full backlog fails.
func (o *Output) InBackground(enough <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if mode := modeOf(o.File); o.late == nil && mode&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		o.late = newBacklog(direct{o}, enough)
	}
}

// End writes an incomplete last character, and waits until the backlog is written or enough is
// closed. The file stays open.
func (o *Output) End(enough <-chan struct{}) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.text.Flush()
	err := o.pass()
	if o.late != nil {
		err = errors.Join(err, o.late.flush(enough))
	}
	return err
}

// Span is text in one style; an empty style is plain text.
type Span struct{ style, Text string }

// Plain returns text as it is.
func Plain(text string) Span { return Span{"", text} }

// Dim returns text in a faint color.
func Dim(text string) Span { return Span{"2", text} }

// Bold returns text in bold letters.
func Bold(text string) Span { return Span{"1", text} }

// Red returns text in red.
func Red(text string) Span { return Span{"31", text} }

// Green returns text in green.
func Green(text string) Span { return Span{"32", text} }

// Cyan returns text in cyan.
func Cyan(text string) Span { return Span{"36", text} }

// Plains returns spans without a style.
func Plains(texts ...string) []Span {
	spans := make([]Span, len(texts))
	for i, text := range texts {
		spans[i] = Plain(text)
	}
	return spans
}

// Print writes spans with their styles, in one write.
func (o *Output) Print(spans ...Span) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range spans {
		switch {
		case !o.Terminal:
			o.buf.WriteString(s.Text)
		case s.style == "" || s.Text == "":
			_, _ = io.WriteString(o.text, s.Text)
		default:
			_ = o.text.Flush() // flush the text before the span, which has no style
			o.buf.WriteString(o.styled(s))
		}
	}
	return o.pass()
}

// styled returns a span with its escape sequences, if the terminal shows styles.
func (o *Output) styled(s Span) string {
	text := visible.Text(s.Text)
	if !o.Colors {
		return text
	}
	return "\x1b[" + s.style + "m" + text + "\x1b[0m"
}

// Println is print with a line break.
func (o *Output) Println(spans ...Span) error { return o.Print(append(spans, Plain("\n"))...) }

// Row prints one line. On a terminal it makes line breaks in the spans visible.
func (o *Output) Row(spans ...Span) error { return o.Println(o.cells(spans)...) }

func (o *Output) cells(spans []Span) []Span {
	if !o.Terminal {
		return spans
	}
	cells := make([]Span, len(spans))
	for i, s := range spans {
		cells[i] = Span{s.style, visible.Line(s.Text)}
	}
	return cells
}

// Table prints rows in aligned columns. On a terminal it fits the table to the width: the last
// column continues on the next line, or the widest column is cut.
func (o *Output) Table(rows ...[]Span) error {
	width := -1
	if o.Terminal {
		width = o.Width()
	}
	for i, row := range rows {
		rows[i] = o.cells(row)
	}
	for _, line := range tableLines(rows, width) {
		if err := o.Println(line...); err != nil {
			return err
		}
	}
	return nil
}

// tableLines returns the lines of a table. A negative width means no limit.
func tableLines(rows [][]Span, width int) [][]Span {
	var widths []int
	for _, row := range rows {
		for n, cell := range row {
			if n == len(widths) {
				widths = append(widths, 0)
			}
			widths[n] = max(widths[n], columns(cell.Text))
		}
	}
	if width >= 0 {
		widths = Fit(widths, width)
	}
	var lines [][]Span
	for _, row := range rows {
		for more := row; more != nil; {
			var line []Span
			line, more = TableLine(more, widths)
			lines = append(lines, line)
		}
	}
	return lines
}

// leastLast is the minimum width of the last column of a table, if it continues on the next
// line.
const leastLast = 24

// Fit makes columns narrower until the row fits.
func Fit(widths []int, width int) []int {
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

// TableLine returns one line of a row, and the rest of its last column for the next line; nil if
// there is no rest.
func TableLine(row []Span, widths []int) (line, more []Span) {
	for n, cell := range row {
		last := n == len(widths)-1
		if over := columns(cell.Text) > widths[n]; over && last && widths[n] >= leastLast {
			head, rest := cutWords(cell.Text, widths[n])
			more = make([]Span, len(row))
			more[n] = Span{cell.style, rest}
			cell.Text = head
		} else if over {
			cell.Text = clip(cell.Text, widths[n])
		}
		line = append(line, cell)
		if n < len(row)-1 {
			line = append(line, Plain(strings.Repeat(" ", widths[n]-columns(cell.Text)+2)))
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
