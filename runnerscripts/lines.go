package runnerscripts

import (
	"bytes"
	"fmt"
	"io"

	"github.com/agentenv-dev/agentenv/primitives"
)

// DefaultMaxLine is the longest line that is read where the caller names no
// other limit: 32 MiB. MaxTranscript is that for a line with a whole transcript, the
// request of setup-session and the result of read-transcript: 64 MiB.
const (
	DefaultMaxLine = 32 << 20
	MaxTranscript  = 64 << 20
)

const (
	firstBuffer = 64 << 10
	// keepBuffer is how large a buffer may stay after a long line is done with.
	keepBuffer = 1 << 20
	// mostEmptyReads is how often a reader may return nothing and no error.
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
	from  int64 // what of the stream was before buf
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

// Next returns the next line that is not empty, without "\n" or "\r\n". It is
// valid until the next call. A last line without line end is returned like any
// other, and [LineReader.Unterminated] then says so. At the end of the stream the
// error is io.EOF; a line over the limit is primitives.ErrLimit, and nothing
// follows it. Errors stay.
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

// take is Next for a caller that keeps the line. A long one that fills most of the
// buffer is not copied for that: the reader lets go of the buffer.
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

// Lines counts the lines so far, empty ones included: it is the number of the
// line that Next returned last, from 1.
func (l *LineReader) Lines() int64 { return l.lines }

// Offset returns where in the stream the line ends that Next returned last, in bytes, its
// line end included.
func (l *LineReader) Offset() int64 { return l.from + int64(l.start) }

// Unterminated reports that the stream ended in the middle of the line that was
// returned last.
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

// fill reads once, after making room.
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
