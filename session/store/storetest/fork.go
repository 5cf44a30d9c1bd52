package storetest

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// original creates a session "s" with five events and a blob.
func original(t *testing.T, s store.Store) {
	t.Helper()
	create(t, s, "s")
	put(t, s, "s", "in common")
	for seq := range uint64(5) {
		ev := numbered(seq + 1)
		ev.SessionID = []string{"s", "", "of another one"}[seq%3]
		ev.Time = at(int(seq) + 10)
		must(t, s.Append(t.Context(), "s", ev))
	}
}

func forkRecord() store.Record {
	return store.Record{ID: "f", Agent: "codex", Title: "fork", CreatedAt: at(2)}
}

func fork(t *testing.T, s store.Store) {
	original(t, s)
	r := forkRecord()
	r.LastSeq, r.UpdatedAt, r.Parent = 7, at(50), "x" // set by the store
	must(t, s.Fork(t.Context(), "s", 3, r))
	forked(t, s)
	appendN(t, s, "f", 4, 4)
	appendN(t, s, "s", 6, 6)
	if a, b := read(t, s, "s", 1), read(t, s, "f", 1); len(a) != 6 || len(b) != 4 {
		t.Errorf("%d and %d events", len(a), len(b))
	}
}

func forked(t *testing.T, s store.Store) {
	got, err := s.Load(t.Context(), "f")
	must(t, err)
	w := forkRecord()
	w.Parent, w.LastSeq, w.UpdatedAt = "s", got.LastSeq, got.UpdatedAt
	if !sameRecord(got, w) || got.LastSeq < 3 {
		t.Errorf("record %+v, want %+v", got, w)
	}
	events := read(t, s, "f", 1)[:3]
	for i, ev := range events {
		w := numbered(uint64(i + 1))
		if ev.Seq != w.Seq || string(ev.Payload) != string(w.Payload) || !ev.Time.Equal(at(i+10)) {
			t.Errorf("event %+v", ev)
		}
		if id := []string{"f", "", "of another one"}[i]; ev.SessionID != id {
			t.Errorf("event %d is of session %q, want %q", ev.Seq, ev.SessionID, id)
		}
	}
	holds(t, s, "f", "in common")
	if ev := read(t, s, "s", 1)[0]; ev.SessionID != "s" {
		t.Errorf("the original's event is of session %q", ev.SessionID)
	}
}

func forkApart(t *testing.T, s store.Store) {
	original(t, s)
	must(t, s.Fork(t.Context(), "s", 5, forkRecord()))
	put(t, s, "f", "only here")
	lacks(t, s, "s", "only here")
	must(t, s.Delete(t.Context(), "s"))
	forkedAlone(t, s)
}

func forkedAlone(t *testing.T, s store.Store) {
	holds(t, s, "f", "in common")
	holds(t, s, "f", "only here")
	if got := read(t, s, "f", 1); len(got) != 5 {
		t.Errorf("%d events", len(got))
	}
}

// forkBlobs forks at event 3 a session that put a blob before each of its events.
func forkBlobs(t *testing.T, s store.Store) {
	create(t, s, "s")
	for seq := uint64(1); seq <= 5; seq++ {
		for _, c := range named(seq) {
			put(t, s, "s", c)
		}
		appendN(t, s, "s", seq, seq)
	}
	for _, c := range named(2) { // what a later event names, too
		put(t, s, "s", c)
	}
	must(t, s.Fork(t.Context(), "s", 3, forkRecord()))
	must(t, s.Fork(t.Context(), "f", 2, store.Record{ID: "again", CreatedAt: at(3)}))
	must(t, s.Fork(t.Context(), "s", 5, store.Record{ID: "all", CreatedAt: at(3)}))
	forkedBlobs(t, s)
}

// named returns the blobs that the event seq names.
func named(seq uint64) []string {
	return []string{fmt.Sprint("of event ", seq), strings.Repeat(fmt.Sprint(seq, " "), 1<<16)}
}

func forkedBlobs(t *testing.T, s store.Store) {
	for id, last := range map[string]uint64{"s": 5, "f": 3, "again": 2, "all": 5} {
		for seq := uint64(1); seq <= 5; seq++ {
			for _, c := range named(seq) {
				if seq <= last {
					holds(t, s, id, c)
				} else {
					lacks(t, s, id, c)
				}
			}
		}
	}
}

func forkNothing(t *testing.T, s store.Store) {
	original(t, s)
	must(t, s.Fork(t.Context(), "s", 0, forkRecord()))
	r, err := s.Load(t.Context(), "f")
	must(t, err)
	if r.LastSeq != 0 || !r.UpdatedAt.Equal(r.CreatedAt) || len(read(t, s, "f", 1)) != 0 {
		t.Errorf("record %+v", r)
	}
	appendN(t, s, "f", 1, 1)
}

func forkRefused(t *testing.T, s store.Store) {
	original(t, s)
	create(t, s, "other")
	want(t, "an id that is there", s.Fork(t.Context(), "s", 1, store.Record{ID: "other"}), fs.ErrExist)
	want(t, "its own id", s.Fork(t.Context(), "s", 1, store.Record{ID: "s"}), fs.ErrExist)
	want(t, "an empty id", s.Fork(t.Context(), "s", 1, store.Record{}), fs.ErrInvalid)
	want(t, "beyond the end", s.Fork(t.Context(), "s", 6, store.Record{ID: "f"}), fs.ErrInvalid)
	want(t, "an unknown session", s.Fork(t.Context(), "unknown", 1, store.Record{ID: "f"}), store.ErrNotFound)
	if got := listed(t, s, store.Filter{}); got != "other s" {
		t.Errorf("listed %q", got)
	}
	if got := read(t, s, "other", 1); len(got) != 0 {
		t.Errorf("%d events", len(got))
	}
	lacks(t, s, "other", "in common")
}

// lock acquires a free lease.
func lock(t *testing.T, s store.Store, id string) func() error {
	t.Helper()
	unlock, err := s.Lock(t.Context(), id)
	must(t, err)
	return unlock
}

func lockOnce(t *testing.T, s store.Store) {
	create(t, s, "s")
	create(t, s, "other")
	unlock := lock(t, s, "s")
	_, err := s.Lock(t.Context(), "s")
	want(t, "second lock", err, store.ErrLocked)
	must(t, lock(t, s, "other")())
	// The other methods do not check the lease.
	appendN(t, s, "s", 1, 1)
	must(t, s.Update(t.Context(), "s", func(*store.Record) {}))
	must(t, errors.Join(unlock(), unlock()))
	again := lock(t, s, "s")
	must(t, unlock()) // the first lease has ended, so this unlocks nothing
	_, err = s.Lock(t.Context(), "s")
	want(t, "lock of another one", err, store.ErrLocked)
	must(t, again())
}

func lockDeleted(t *testing.T, s store.Store) {
	create(t, s, "s")
	unlock := lock(t, s, "s")
	must(t, s.Delete(t.Context(), "s"))
	must(t, unlock())
	create(t, s, "s")
	must(t, lock(t, s, "s")())
}

func listClock(t *testing.T, s store.Store) {
	create(t, s, "a")
	create(t, s, "b")
	must(t, s.Append(t.Context(), "b", runnerscripts.Event{Seq: 1, Type: "log", Time: at(50)}))
	must(t, s.Append(t.Context(), "a", runnerscripts.Event{Seq: 1, Type: "log", Time: at(0).AddDate(-10, 0, 0)}))
	listedClock(t, s)
}

func listedClock(t *testing.T, s store.Store) {
	if got := listed(t, s, store.Filter{}); got != "a b" {
		t.Errorf("listed %q", got)
	}
	if r, err := s.Load(t.Context(), "a"); err != nil || r.UpdatedAt.Before(r.CreatedAt) {
		t.Errorf("updated at %v, created at %v, %v", r.UpdatedAt, r.CreatedAt, err)
	}
}
