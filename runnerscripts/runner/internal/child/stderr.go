package child

import (
	"bytes"
	"io"
)

// keepEnd reads standard error and keeps its end. keep, if not nil, selects the lines.
func keepEnd(end io.Writer, r io.Reader, keep func(line []byte) bool) {
	if keep == nil {
		_, _ = io.Copy(end, r)
		return
	}
	lines := &lineFilter{keep: keep, out: end}
	_, _ = io.Copy(lines, r)
	lines.flush()
}

// longestLine is the size at which a line of standard error is split, in bytes.
const longestLine = 64 << 10

// lineFilter passes on the lines that keep selects.
type lineFilter struct {
	keep func(line []byte) bool
	out  io.Writer
	line []byte
}

func (f *lineFilter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			end = len(rest)
		}
		f.line = append(f.line, rest[:end]...)
		rest = rest[end:]
		if f.line[len(f.line)-1] == '\n' || len(f.line) > longestLine {
			f.pass()
		}
	}
	return len(p), nil
}

// flush passes on an unterminated last line.
func (f *lineFilter) flush() {
	if len(f.line) > 0 {
		f.pass()
	}
}

func (f *lineFilter) pass() {
	if f.keep(bytes.TrimSuffix(f.line, []byte("\n"))) {
		_, _ = f.out.Write(f.line) // a tail never fails
	}
	f.line = f.line[:0]
}
