package runnerscripts

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"testing"
)

// countingWriter counts writes and returns err from each.
type countingWriter struct {
	bytes.Buffer
	writes int
	err    error
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.writes++
	if w.err != nil {
		return 0, w.err
	}
	return w.Buffer.Write(p)
}

func TestEncoderWritesEachLineAtOnceAndReadable(t *testing.T) {
	var w countingWriter
	enc := NewEncoder(&w)
	err := enc.Encode(Event{Type: TypeLog, Payload: json.RawMessage("{\n \"message\": \"a<b>&\\n\"}")})
	if err == nil {
		err = enc.WriteLine([]byte("as it is"))
	}
	want := `{"type":"log","payload":{"message":"a<b>&\n"},"time":"0001-01-01T00:00:00Z"}` + "\nas it is\n"
	if err != nil || w.String() != want || w.writes != 2 {
		t.Errorf("%v, %d writes:\n got %s\nwant %s", err, w.writes, w.String(), want)
	}
}

func TestLinesOfManyGoroutinesDoNotMix(t *testing.T) {
	var w countingWriter
	enc := NewEncoder(&w)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 200 {
				if err := enc.Encode(Event{Seq: uint64(i*1000 + n + 1), Type: TypeLog, Payload: bytes.Repeat([]byte("1"), n+1)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	dec := NewDecoder(&w.Buffer, 0)
	seen := map[uint64]bool{}
	for {
		ev, err := dec.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		seen[ev.Seq] = true
	}
	if len(seen) != 1600 || dec.Counts().Malformed != 0 {
		t.Errorf("%d lines of 1600 came through, counts %+v", len(seen), dec.Counts())
	}
}

func TestEncoderStopsAtAWriteErrorAndNotAtABadValue(t *testing.T) {
	w := &countingWriter{}
	enc := NewEncoder(w)
	if err := enc.Encode(Event{Payload: json.RawMessage("{")}); err == nil || w.writes != 0 {
		t.Errorf("a payload that is no JSON: %v, %d writes", err, w.writes)
	}
	if err := enc.Encode(1); err != nil {
		t.Errorf("after it: %v", err)
	}
	w.err = io.ErrClosedPipe
	for range 2 {
		if err := enc.Encode(2); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%v, want io.ErrClosedPipe", err)
		}
	}
	if w.writes != 2 {
		t.Errorf("%d writes, want none after the failed one", w.writes)
	}
}
