package runnerscripts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	// shownLine is how much of a malformed line its diagnostic shows.
	shownLine = 4 << 10
	// maxValues is how many values a line may hold. A value of two bytes takes about a hundred when
	// decoded.
	maxValues = 1 << 20
)

// Decoder reads the events that a script prints. Only a line over the limit ends the stream early.
// A malformed line, or one with more than a million values, becomes a [TypeLog] event of level
// "warn" that shows it, and is counted. A Decoder must not be used from several goroutines at once.
type Decoder struct {
	lines  *LineReader
	names  names
	next   *Event // decoded, waits behind a diagnostic
	counts DecodeCounts
}

// DecodeCounts counts the lines that a [Decoder] has read.
type DecodeCounts struct {
	Lines       int64 // lines read, empty ones included
	Malformed   int64 // lines that were no JSON object with a type, reported as log events
	InvalidUTF8 int64 // lines in which bytes were replaced, reported as log events
}

// NewDecoder returns a decoder of the events in r, for lines of up to maxLine
// bytes. Zero means [DefaultMaxLine].
func NewDecoder(r io.Reader, maxLine int) *Decoder {
	return &Decoder{lines: NewLineReader(r, maxLine)}
}

// Counts returns the counts of all lines read until now.
func (d *Decoder) Counts() DecodeCounts {
	c := d.counts
	c.Lines = d.lines.Lines()
	return c
}

// Offset returns the offset in the stream, in bytes, at which the line of the last event ends.
func (d *Decoder) Offset() int64 { return d.lines.Offset() }

// Next returns the next event. A script's last line comes as an event of type
// [TypeResult] whose payload is the [Result]:
//
//	if ev.Type == runnerscripts.TypeResult {
//		res, err := runnerscripts.Payload[runnerscripts.Result](ev)
//	}
//
// The event belongs to the caller. Next replaces bytes that are not UTF-8 by U+FFFD, and returns a
// [TypeLog] event before the repaired one. It returns the errors of [LineReader.Next]: io.EOF at
// the end.
func (d *Decoder) Next() (Event, error) {
	if d.next != nil {
		ev := *d.next
		d.next = nil
		return ev, nil
	}
	line, err := d.lines.take()
	if err != nil {
		return Event{}, err
	}
	if !utf8.Valid(line) {
		return d.repaired(bytes.ToValidUTF8(line, []byte("\uFFFD"))), nil
	}
	ev, err := d.decode(line)
	if err != nil {
		return d.malformed(line, err), nil
	}
	return ev, nil
}

func (d *Decoder) decode(line []byte) (Event, error) {
	if len(line) > maxValues && countValues(line) > maxValues {
		return Event{}, errManyValues
	}
	return decodeEvent(line, &d.names)
}

var errManyValues = fmt.Errorf("%w: it has more than %d values", primitives.ErrLimit, maxValues)

// repaired returns the diagnostic for a line whose invalid bytes were replaced, and keeps the event
// of the line for the next call.
func (d *Decoder) repaired(line []byte) Event {
	d.counts.InvalidUTF8++
	ev, err := d.decode(line)
	if err != nil {
		return d.malformed(line, err)
	}
	d.next = &ev
	return d.diagnose("bytes that are not UTF-8 were replaced in the line of the event that follows", line, nil)
}

func (d *Decoder) malformed(line []byte, err error) Event {
	d.counts.Malformed++
	msg := "a line is not an event and was left out"
	if d.lines.Unterminated() {
		msg = "the output ended in the middle of a line, which was left out"
	}
	return d.diagnose(msg, line, err)
}

// diagnose returns the log event about a line.
func (d *Decoder) diagnose(msg string, line []byte, err error) Event {
	data := struct {
		Line   string `json:"line"`
		Length int    `json:"length"`
		Number int64  `json:"number"`
		Error  string `json:"error,omitempty"`
	}{Length: len(line), Number: d.lines.Lines()}
	data.Line = string(bytes.ToValidUTF8(line[:min(len(line), shownLine)], nil))
	if err != nil {
		data.Error = err.Error()
	}
	return Event{
		Type:    TypeLog,
		Payload: mustMarshal(Log{Level: "warn", Message: msg, Data: mustMarshal(data)}),
		Time:    time.Now().UTC(),
	}
}

// mustMarshal marshals values whose types cannot fail to marshal.
func mustMarshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("runnerscripts: %T does not marshal: %v", v, err))
	}
	return b
}

var errNoType = errors.New(`it has no "type"`)

// DecodeEvent decodes one line. Payload shares memory with line, so the caller must not change line
// afterwards. An event of an unknown type without a payload gets the whole line as payload: nothing
// is lost. Time is zero if the line has none.
func DecodeEvent(line []byte) (Event, error) { return decodeEvent(line, &names{}) }

func decodeEvent(line []byte, n *names) (Event, error) {
	if ev, ok := scanEvent(line, n); ok {
		return finish(ev, line)
	}
	return decodeUnusual(line)
}

// decodeUnusual is a function of its own so that only its events escape to the heap.
func decodeUnusual(line []byte) (Event, error) {
	var ev Event
	if err := json.Unmarshal(line, &ev); err != nil {
		return Event{}, err
	}
	return finish(ev, line)
}

// finish requires a type and fills in a missing payload.
func finish(ev Event, line []byte) (Event, error) {
	if ev.Type == "" {
		return Event{}, errNoType
	}
	if len(ev.Payload) == 0 || string(ev.Payload) == "null" {
		if _, known := eventKinds[ev.Type]; known {
			ev.Payload = json.RawMessage("{}")
		} else {
			ev.Payload = bytes.TrimSpace(line)
		}
	}
	return ev, nil
}
