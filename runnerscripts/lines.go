package runnerscripts

import (
	"bytes"
	"fmt"
	"io"

	"github.com/agentenv-dev/agentenv/primitives"
)

// DefaultMaxLine is the length limit of a line if the caller sets none: 32 MiB. MaxTranscript is
// the limit of a line that holds a whole transcript, the request of setup-session and the result of
// read-transcript: 64 MiB.
const (
	DefaultMaxLine = 32 << 20
	MaxTranscript  = 64 << 20
)

const (
	firstBuffer = 64 << 10
	// keepBuffer is the largest buffer that is kept after a long line.
	keepBuffer = 1 << 20
	// mostEmptyReads is how often in a row a reader may return no bytes and no error.
	mostEmptyReads = 100
)

// LineReader splits a stream into lines of any length up to a limit. It returns
// a line as soon as it is complete, without waiting for more input. It must not
// be used from several goroutines at once.
type LineReader struct {
	r     io.Reader
	max   int
	buf   []byte // buf[start:end] is read and not yet returned
	start int
	end   int
	lines int64
	from  int64 // bytes of the stream before buf
	half  bool
	err   error
}

// NewLineReader returns a reader of the lines of r of up to maxLine bytes without
// their line end. Zero means [DefaultMaxLine].
func NewLineReader(r io.Reader, maxLine int) *LineReader {
	if maxLine <= 0 {
		maxLine = DefaultMaxLine
	}
	return &LineReader{r: r, max: maxLine}
}

// Next returns the next line that is not empty, without "\n" or "\r\n". The line is valid until the
// next call. Next returns a last line without line end like any other, and
// [LineReader.Unterminated] then reports true. At the end of the stream the error is io.EOF. For a
// line over the limit it is primitives.ErrLimit, and nothing follows that line. After an error,
// every call returns the same error.
func (l *LineReader) Next() ([]byte, error) {
	for {
		line, err := l.next()
		if err != nil {
			return nil, err
		}
		l.lines++
		if n := len(line); n > 0 && line[n-1] == '\r' {
			line = line[:n-1]
		}
		if len(line) > 0 {
			return line, nil
		}
	}
}

// take is Next for a caller that keeps the line. It does not copy a long line that fills most of
// the buffer: it gives the buffer away and starts a new one.
func (l *LineReader) take() ([]byte, error) {
	line, err := l.Next()
	if len(line) <= keepBuffer || len(line) < len(l.buf)/4*3 {
		return bytes.Clone(line), err
	}
	l.buf = append(make([]byte, 0, firstBuffer), l.buf[l.start:l.end]...)
	l.from += int64(l.start)
	l.start, l.end = 0, len(l.buf)
	l.buf = l.buf[:cap(l.buf)]
	return line, err
}

// Lines returns the number of the line that Next returned last, from 1. Empty lines count.
func (l *LineReader) Lines() int64 { return l.lines }

// Offset returns the offset in the stream, in bytes, after the line that Next returned last and its
// line end.
func (l *LineReader) Offset() int64 { return l.from + int64(l.start) }

// Unterminated reports whether the stream ended in the middle of the line that Next returned last.
func (l *LineReader) Unterminated() bool { return l.half }

func (l *LineReader) next() ([]byte, error) {
	searched := 0
	for {
		if i := bytes.IndexByte(l.buf[l.start+searched:l.end], '\n'); i >= 0 {
			line := l.buf[l.start : l.start+searched+i]
			l.start += searched + i + 1
			if len(bytes.TrimSuffix(line, []byte{'\r'})) > l.max {
				return nil, l.tooLong()
			}
			return line, nil
		}
		searched = l.end - l.start
		if searched > l.max+1 { // room for "\r"
			return nil, l.tooLong()
		}
		if l.err != nil {
			return l.last()
		}
		l.fill()
	}
}

func (l *LineReader) last() ([]byte, error) {
	if l.start == l.end {
		l.from += int64(l.start)
		l.buf, l.start, l.end = nil, 0, 0
		return nil, l.err
	}
	line := l.buf[l.start:l.end]
	l.start = l.end
	if len(line) > l.max {
		return nil, l.tooLong()
	}
	l.half = true
	return line, nil
}

func (l *LineReader) tooLong() error {
	l.err = fmt.Errorf("%w: line %d is longer than %d bytes; print less on a line, or read with a higher limit",
		primitives.ErrLimit, l.lines+1, l.max)
	l.from += int64(l.start)
	l.buf, l.start, l.end = nil, 0, 0
	return l.err
}

// fill makes room in the buffer and reads some bytes.
func (l *LineReader) fill() {
	switch {
	case l.start == l.end:
		l.from += int64(l.start)
		l.start, l.end = 0, 0
		if l.buf == nil || len(l.buf) > keepBuffer {
			l.buf = make([]byte, firstBuffer)
		}
	case l.end < len(l.buf):
	case l.start > len(l.buf)/2:
		l.end = copy(l.buf, l.buf[l.start:l.end])
		l.from += int64(l.start)
		l.start = 0
	default:
		larger := make([]byte, min(2*len(l.buf), l.max+len("\r\n")+keepBuffer))
		l.end = copy(larger, l.buf[l.start:l.end])
		l.from += int64(l.start)
		l.buf, l.start = larger, 0
	}
	for range mostEmptyReads {
		n, err := l.r.Read(l.buf[l.end:])
		l.end += n
		if err != nil {
			l.err = err
		}
		if n > 0 || err != nil {
			return
		}
	}
	l.err = io.ErrNoProgress
}
