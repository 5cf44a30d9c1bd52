package runnerscripts

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/agentenv-dev/agentenv/primitives"
)

// stutter reads a few bytes at a time, and nothing at all in between.
type stutter struct {
	data  []byte
	step  int
	pause bool
}

func (s *stutter) Read(p []byte) (int, error) {
	if s.pause = !s.pause; s.pause {
		return 0, nil
	}
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.step)], s.data)
	s.data = s.data[n:]
	return n, nil
}

func readLines(t *testing.T, r io.Reader, limit int) ([]string, error) {
	t.Helper()
	l := NewLineReader(r, limit)
	var lines []string
	for {
		line, err := l.Next()
		if err != nil {
			if _, again := l.Next(); !errors.Is(again, err) {
				t.Errorf("the error does not stay: %v, then %v", err, again)
			}
			return lines, err
		}
		lines = append(lines, string(line))
	}
}

func TestLinesEndInAnyWayAndEmptyOnesAreSkipped(t *testing.T) {
	const in = "a\n\nb\r\n\r\n\n c \rd\nhalf"
	want := []string{"a", "b", " c \rd", "half"}
	for name, r := range map[string]io.Reader{
		"at once": strings.NewReader(in), "byte by byte": iotest.OneByteReader(strings.NewReader(in)),
		"with pauses": &stutter{data: []byte(in), step: 3}, "error with data": iotest.DataErrReader(strings.NewReader(in)),
	} {
		if got, err := readLines(t, r, 0); !slices.Equal(got, want) || !errors.Is(err, io.EOF) {
			t.Errorf("%s: %q, %v; want %q, EOF", name, got, err, want)
		}
	}
}

func TestLineOverTheLimitIsErrLimitThatNamesIt(t *testing.T) {
	for in, ok := range map[string]bool{
		"12345\n": true, "12345\r\n": true, "12345": true, "123456\n": false, "123456": false, "123456\r\n": false,
		strings.Repeat("x", 1<<20): false,
	} {
		_, err := readLines(t, strings.NewReader("ok\n"+in), 5)
		if ok && !errors.Is(err, io.EOF) {
			t.Errorf("%q: %v, want EOF", in, err)
		}
		if !ok && (!errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), "line 2 is longer than 5 bytes")) {
			t.Errorf("%.10q: %v, want ErrLimit that names line and limit", in, err)
		}
	}
}

func TestLineIsReturnedBeforeMoreInputComes(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	l := NewLineReader(r, 0)
	go w.Write([]byte("now\nlat"))
	if line, err := l.Next(); err != nil || string(line) != "now" {
		t.Fatalf("%q, %v", line, err)
	}
}

func TestReaderThatReturnsNothingForEverIsAnError(t *testing.T) {
	idle := readerFunc(func([]byte) (int, error) { return 0, nil })
	if _, err := readLines(t, idle, 0); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("%v, want io.ErrNoProgress", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestALongLineIsAnEventLikeAnyOther(t *testing.T) {
	payload := `{"blockId":"b","content":{"type":"text","text":"` + strings.Repeat("0123456789", 3<<20) + `"}}`
	in := io.MultiReader(
		strings.NewReader(`{"type":"agent_message_chunk","payload":`), strings.NewReader(payload),
		strings.NewReader("}\n"+`{"type":"log"}`+"\n"),
	)
	dec := NewDecoder(in, 0)
	ev, err := dec.Next()
	if err != nil || ev.Type != TypeAgentMessage || string(ev.Payload) != payload {
		t.Fatalf("%q, %v, %d bytes of payload; want %d", ev.Type, err, len(ev.Payload), len(payload))
	}
	if ev, err = dec.Next(); err != nil || ev.Type != TypeLog {
		t.Fatalf("the next event is %q, %v", ev.Type, err)
	}
	if _, err := dec.Next(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func decodeAllEvents(t *testing.T, in string) ([]Event, DecodeCounts) {
	t.Helper()
	dec := NewDecoder(strings.NewReader(in), 0)
	var events []Event
	for {
		ev, err := dec.Next()
		if errors.Is(err, io.EOF) {
			return events, dec.Counts()
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, ev)
	}
}

func payload[T any](t *testing.T, ev Event) T {
	t.Helper()
	v, err := Payload[T](ev)
	if err != nil {
		t.Fatalf("payload of %s: %v", ev.Type, err)
	}
	return v
}

type diagnostic struct {
	Line   string
	Length int
	Number int64
	Error  string
}

func TestMalformedLineIsALogEventThatShowsIt(t *testing.T) {
	long := "oops " + strings.Repeat("ü", 10_000)
	events, counts := decodeAllEvents(t, "\n"+long+"\n"+`{"type":"session_idle"}`+"\n{}\n[1]\n"+`{"type":"half`)
	if want := (DecodeCounts{Lines: 6, Malformed: 4}); counts != want {
		t.Errorf("counts %+v, want %+v", counts, want)
	}
	if len(events) != 5 || events[1].Type != TypeSessionIdle {
		t.Fatalf("events %+v", events)
	}
	for i, want := range map[int]diagnostic{
		0: {Length: len(long), Number: 2}, 2: {Line: "{}", Length: 2, Number: 4},
		3: {Line: "[1]", Length: 3, Number: 5}, 4: {Line: `{"type":"half`, Length: 13, Number: 6},
	} {
		l := payload[Log](t, events[i])
		got := payload[diagnostic](t, Event{Payload: l.Data})
		if events[i].Type != TypeLog || l.Level != "warn" || got.Error == "" || got.Length != want.Length || got.Number != want.Number || events[i].Time.IsZero() {
			t.Errorf("event %d: %+v, %+v; want %+v", i, l, got, want)
		}
		if want.Line != "" && got.Line != want.Line {
			t.Errorf("event %d shows %q, want %q", i, got.Line, want.Line)
		}
		if len(got.Line) > shownLine || !strings.HasPrefix(want.Line+long, got.Line) {
			t.Errorf("event %d shows %d bytes, want a prefix of at most %d", i, len(got.Line), shownLine)
		}
	}
	if l := payload[Log](t, events[4]); !strings.Contains(l.Message, "ended in the middle of a line") {
		t.Errorf("half a line at the end: %q", l.Message)
	}
}

func TestBytesThatAreNotUTF8AreReplacedAndReported(t *testing.T) {
	events, counts := decodeAllEvents(t, "{\"type\":\"log\",\"payload\":{\"level\":\"info\",\"message\":\"a\xffb\"}}\n\xfe\n")
	if counts.InvalidUTF8 != 2 || counts.Malformed != 1 || len(events) != 3 {
		t.Fatalf("counts %+v, %d events", counts, len(events))
	}
	if l := payload[Log](t, events[0]); l.Level != "warn" || !strings.Contains(l.Message, "UTF-8") {
		t.Errorf("the diagnostic is %+v", l)
	}
	if l := payload[Log](t, events[1]); l.Message != "a\uFFFDb" {
		t.Errorf("the event has %q", l.Message)
	}
}

func TestUnknownTypeIsCarriedWithItsJSON(t *testing.T) {
	const bare, full = `{"type":"new_thing","answer":42}`, `{"type":"new_thing","payload":{"answer":42}}`
	for in, want := range map[string]string{bare: bare, full: `{"answer":42}`} {
		events, _ := decodeAllEvents(t, in+"\n")
		if len(events) != 1 || events[0].Type != "new_thing" || string(events[0].Payload) != want {
			t.Errorf("%s: %+v", in, events)
		}
	}
}

func TestResultComesAsAnEventWithTheResultAsPayload(t *testing.T) {
	events, _ := decodeAllEvents(t, `{"type":"result","ok":false,"error":{"code":"agent","message":"m"}}`)
	r := payload[Result](t, events[0])
	if events[0].Type != TypeResult || r.OK || r.Error == nil || r.Error.Code != FailAgent {
		t.Errorf("%+v", r)
	}
}

func TestGoldenLinesDecodeIntoTheirPayloads(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	seen := map[EventType]bool{}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		events, counts := decodeAllEvents(t, string(raw))
		if counts.Malformed+counts.InvalidUTF8 > 0 {
			t.Errorf("%s: %+v", name, counts)
		}
		var again bytes.Buffer
		enc := NewEncoder(&again)
		for _, ev := range events {
			seen[ev.Type] = true
			checkPayload(t, name, ev)
			if err := enc.Encode(ev); err != nil {
				t.Fatal(err)
			}
		}
		if again.String() != string(raw) {
			t.Errorf("%s: decoded and encoded it is not the same:\n%s", name, again.String())
		}
	}
	for _, typ := range EventTypes() {
		if !seen[typ] {
			t.Errorf("testdata has no %s", typ)
		}
	}
}

// checkPayload decodes a payload strictly into the struct of its type.
func checkPayload(t *testing.T, name string, ev Event) {
	t.Helper()
	typ := PayloadType(ev.Type)
	if typ == nil {
		t.Errorf("%s: %s is not in the table", name, ev.Type)
		return
	}
	if err := strict(ev.Payload, reflect.New(typ).Interface()); err != nil {
		t.Errorf("%s: %s: %v", name, ev.Type, err)
	}
}

func TestTheOffsetIsTheEndOfTheLine(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	in := "a\n\nbc\r\n" + long + "\nd\n" + long + "\n" + strings.Repeat("y\n", 40_000) + "half"
	for name, r := range map[string]io.Reader{
		"at once": strings.NewReader(in), "in parts": &stutter{data: []byte(in), step: 70_000},
	} {
		for _, next := range map[string]func(*LineReader) ([]byte, error){"next": (*LineReader).Next, "take": (*LineReader).take} {
			l := NewLineReader(r, 0)
			for {
				line, err := next(l)
				if errors.Is(err, io.EOF) {
					break
				}
				read := strings.TrimRight(in[:l.Offset()], "\r\n")
				if err != nil || !strings.HasSuffix(read, string(line)) {
					t.Fatalf("%s: offset %d after %.10q, %v", name, l.Offset(), line, err)
				}
			}
			if l.Offset() != int64(len(in)) && l.Offset() != 0 {
				t.Errorf("%s: offset %d in the end, want %d", name, l.Offset(), len(in))
			}
		}
	}
}
