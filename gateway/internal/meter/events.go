package meter

import "bytes"

const (
	field = "data:"
	// word occurs in every event that reports usage, in all APIs.
	word = "usage"
)

// events parses server-sent events that arrive in pieces. It uses only their data.
type events struct {
	data    picker
	open    bool // the event already has data
	begun   bool // the line has bytes other than a carriage return
	matched int  // how many bytes of the line match field; -1 for another field
}

// write parses the next bytes.
func (e *events) write(b []byte, to *counter) {
	for len(b) > 0 {
		if n := e.skippable(b); n > 0 {
			b = b[n:]
			continue
		}
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		e.line(line, to)
		if ended {
			e.endLine(to)
		}
		b = rest
	}
}

// skippable returns the length of a line, or of a whole event, at the start of b that cannot
// report usage. Most events cannot, so skipping them saves parsing.
func (e *events) skippable(b []byte) int {
	if e.open || e.begun {
		return 0
	}
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return 0
	}
	line, rest := b[:end], b[end+1:]
	switch {
	case len(line) > 0 && line[0] == '\r':
		return 0
	case !bytes.HasPrefix(line, []byte(field)):
		return end + 1
	case bytes.Contains(line, []byte(word)):
		return 0
	case bytes.HasPrefix(rest, []byte("\n")):
		return end + 2
	case bytes.HasPrefix(rest, []byte("\r\n")):
		return end + 3
	}
	return 0 // more lines of data may follow
}

// line parses a part of a line.
func (e *events) line(b []byte, to *counter) {
	if !e.begun {
		b = bytes.TrimLeft(b, "\r")
	}
	if len(b) == 0 || e.matched < 0 {
		return
	}
	e.begun = true
	n := min(len(b), len(field)-e.matched)
	if string(b[:n]) != field[e.matched:e.matched+n] {
		e.matched = -1
		return
	}
	e.matched += n
	e.data.write(b[n:], to)
}

func (e *events) endLine(to *counter) {
	switch {
	case !e.begun:
		e.data.reset()
		to.commit()
		e.open = false
	case e.matched == len(field):
		e.data.write([]byte{'\n'}, to)
		e.open = true
	}
	e.begun, e.matched = false, 0
}
