package child

import (
	"bytes"
	"io"
	"os"
	"time"
)

// complaints is what a program prints on standard error.
type complaints struct {
	r    *os.File
	over chan struct{} // closed when all is read
}

// read keeps the end of it, without the lines that keep, if there is one, does not want
// to have kept.
func (c *complaints) read(end io.Writer, keep func(line []byte) bool) {
	defer close(c.over)
	if keep == nil {
		_, _ = io.Copy(end, c.r)
		return
	}
	lines := &lineFilter{keep: keep, out: end}
	_, _ = io.Copy(lines, c.r)
	lines.flush()
}

// end says that the program has ended, and waits for its last words. A survivor may
// hold the pipe: it is not waited for any longer than it is for other output.
func (c *complaints) end() {
	_ = c.r.SetReadDeadline(time.Now().Add(drainTime))
	<-c.over
	_ = c.r.Close()
}

// longestLine is where a line of standard error is cut in two, in bytes.
const longestLine = 64 << 10

// lineFilter passes on the lines that are to be kept.
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

// flush passes on a last line without an end.
func (f *lineFilter) flush() {
	if len(f.line) > 0 {
		f.pass()
	}
}

func (f *lineFilter) pass() {
	if f.keep(bytes.TrimSuffix(f.line, []byte("\n"))) {
		_, _ = f.out.Write(f.line) // a tail takes everything
	}
	f.line = f.line[:0]
}
