package storetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

func numbered(seq uint64) runnerscripts.Event {
	return runnerscripts.Event{
		Seq: seq, Type: runnerscripts.TypeLog, Time: at(1),
		Payload: json.RawMessage(fmt.Sprintf(`{"level":"info","message":"event %d"}`, seq)),
	}
}

// appendN appends the events from the first to the last number, one by one.
func appendN(t *testing.T, s store.Store, id string, first, last uint64) {
	t.Helper()
	for seq := first; seq <= last; seq++ {
		must(t, s.Append(t.Context(), id, numbered(seq)))
	}
}

func read(t *testing.T, s store.Store, id string, from uint64) []runnerscripts.Event {
	t.Helper()
	var events []runnerscripts.Event
	for ev, err := range s.Events(t.Context(), id, from) {
		must(t, err)
		events = append(events, ev)
	}
	return events
}

// exact returns events with all fields set, and with payloads that must be kept byte by byte.
func exact() []runnerscripts.Event {
	return []runnerscripts.Event{
		{
			Seq: 1, Type: "of_the_future", Payload: json.RawMessage("{ \"b\" : 1.00,\t\"a\":\"\\u00e4\\ud83d\" }"),
			SessionID: "s", ConversationID: "toolu_1", QueryID: "q", Source: runnerscripts.SourceTranscript,
			Time: time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, time.UTC),
		},
		{Seq: 2, Type: runnerscripts.TypeLog, Payload: json.RawMessage("{}"), Time: at(3)},
	}
}

func appendExact(t *testing.T, s store.Store) {
	create(t, s, "s")
	must(t, s.Append(t.Context(), "s", exact()...))
	readExact(t, s)
}

func readExact(t *testing.T, s store.Store) {
	got := read(t, s, "s", 1)
	if len(got) != len(exact()) {
		t.Fatalf("%d events", len(got))
	}
	for i, w := range exact() {
		g := got[i]
		if !g.Time.Equal(w.Time) {
			t.Errorf("event %d: time %v, want %v", w.Seq, g.Time, w.Time)
		}
		g.Time, w.Time = time.Time{}, time.Time{}
		if !reflect.DeepEqual(g, w) {
			t.Errorf("event %d: %+v, want %+v", w.Seq, g, w)
		}
	}
}

func appendGapless(t *testing.T, s store.Store) {
	create(t, s, "s")
	want(t, "first event with number 0", s.Append(t.Context(), "s", numbered(0)), store.ErrConflict)
	want(t, "first event with number 2", s.Append(t.Context(), "s", numbered(2)), store.ErrConflict)
	appendN(t, s, "s", 1, 3)
	for _, seq := range []uint64{0, 1, 3, 5, 1 << 62} {
		want(t, fmt.Sprintf("event %d after 3", seq), s.Append(t.Context(), "s", numbered(seq)), store.ErrConflict)
	}
	readFirstThree(t, s)
}

func appendAtomic(t *testing.T, s store.Store) {
	create(t, s, "s")
	must(t, s.Append(t.Context(), "s", numbered(1), numbered(2), numbered(3)))
	want(t, "batch with a gap", s.Append(t.Context(), "s", numbered(4), numbered(6)), store.ErrConflict)
	want(t, "batch with a repetition", s.Append(t.Context(), "s", numbered(4), numbered(4)), store.ErrConflict)
	readFirstThree(t, s)
}

func readFirstThree(t *testing.T, s store.Store) { readFirst(t, s, 3) }

// readFirstFour reads the store that readFirstThree has left.
func readFirstFour(t *testing.T, s store.Store) { readFirst(t, s, 4) }

func readFirst(t *testing.T, s store.Store, n int) {
	t.Helper()
	got := read(t, s, "s", 0)
	if len(got) != n {
		t.Fatalf("%d events", len(got))
	}
	for i, ev := range got {
		if w := numbered(uint64(i + 1)); ev.Seq != w.Seq || !bytes.Equal(ev.Payload, w.Payload) {
			t.Errorf("event %d: %+v", i+1, ev)
		}
	}
	next := uint64(n + 1)
	appendN(t, s, "s", next, next) // and the log continues there
	if got := read(t, s, "s", next); len(got) != 1 {
		t.Errorf("%d events from %d", len(got), next)
	}
}

func appendNothing(t *testing.T, s store.Store) {
	create(t, s, "s")
	must(t, s.Append(t.Context(), "s"))
	if got := read(t, s, "s", 1); len(got) != 0 {
		t.Errorf("%d events", len(got))
	}
}

func appendOwned(t *testing.T, s store.Store) {
	create(t, s, "s")
	ev := numbered(1)
	must(t, s.Append(t.Context(), "s", ev))
	copy(ev.Payload, "XXXXXXXX") // the caller reuses its buffer for the next line
	if got := read(t, s, "s", 1); !bytes.Equal(got[0].Payload, numbered(1).Payload) {
		t.Errorf("payload %s", got[0].Payload)
	}
}

func appendRace(t *testing.T, s store.Store) {
	create(t, s, "s")
	const writers, rounds = 4, 25
	var won [rounds]atomic.Int32
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := range uint64(rounds) {
				if err := s.Append(t.Context(), "s", numbered(i+1)); err == nil {
					won[i].Add(1)
				}
			}
		})
	}
	wg.Wait()
	got := read(t, s, "s", 1)
	for i := range won {
		if n := won[i].Load(); n > 1 || (i < len(got)) != (n == 1) {
			t.Errorf("event %d was acknowledged to %d writers; %d events are stored", i+1, n, len(got))
		}
	}
	if len(got) == 0 {
		t.Error("no writer won")
	}
}

func appendRecord(t *testing.T, s store.Store) {
	create(t, s, "s")
	ev := numbered(2)
	ev.Time = at(40)
	must(t, s.Append(t.Context(), "s", numbered(1), ev))
	r, err := s.Load(t.Context(), "s")
	must(t, err)
	if r.LastSeq != 2 || !r.UpdatedAt.Equal(at(40)) || !r.CreatedAt.Equal(at(0)) {
		t.Errorf("record %+v", r)
	}
}

func eventsFrom(t *testing.T, s store.Store) {
	create(t, s, "s")
	appendN(t, s, "s", 1, 5)
	for from, first := range map[uint64]uint64{0: 1, 1: 1, 3: 3, 5: 5} {
		got := read(t, s, "s", from)
		if uint64(len(got)) != 6-first || got[0].Seq != first {
			t.Errorf("from %d: %d events", from, len(got))
		}
	}
}

func eventsBeyond(t *testing.T, s store.Store) {
	create(t, s, "s")
	appendN(t, s, "s", 1, 2)
	for _, from := range []uint64{3, 4, 1 << 62} {
		if got := read(t, s, "s", from); len(got) != 0 {
			t.Errorf("from %d: %d events", from, len(got))
		}
	}
}

func eventsSlow(t *testing.T, s store.Store) {
	create(t, s, "s")
	appendN(t, s, "s", 1, 3)
	next := uint64(1)
	for ev, err := range s.Events(t.Context(), "s", 1) {
		must(t, err)
		if ev.Seq != next {
			t.Fatalf("event %d where %d comes next", ev.Seq, next)
		}
		next++
		if ev.Seq <= 3 {
			appendN(t, s, "s", ev.Seq+3, ev.Seq+3) // while the loop runs
		}
	}
	if next != 4 {
		t.Errorf("the loop ended before event %d; it had 3 when it began", next)
	}
}

func eventsLeave(t *testing.T, s store.Store) {
	create(t, s, "s")
	appendN(t, s, "s", 1, 3)
	for range 50 { // a store that leaks its connections runs out of them
		for _, err := range s.Events(t.Context(), "s", 1) {
			must(t, err)
			break
		}
	}
	must(t, s.Delete(t.Context(), "s"))
}

func eventsLarge(t *testing.T, s store.Store) {
	create(t, s, "s")
	ev := numbered(1)
	ev.Payload = append(append([]byte(`{"text":"`), bytes.Repeat([]byte("0123456789abcdef"), 1<<18)...), `"}`...)
	must(t, s.Append(t.Context(), "s", ev))
	if got := read(t, s, "s", 1); !bytes.Equal(got[0].Payload, ev.Payload) {
		t.Errorf("payload of %d bytes, want %d", len(got[0].Payload), len(ev.Payload))
	}
}
