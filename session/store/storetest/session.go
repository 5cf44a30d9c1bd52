package storetest

import (
	"context"
	"errors"
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// at is a time that every store can hold.
func at(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC) }

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want fails the test unless the error is the wanted one.
func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: error %v, want %v", what, err, target)
	}
}

func create(t *testing.T, s store.Store, id string) {
	t.Helper()
	must(t, s.Create(t.Context(), store.Record{ID: id, Agent: "script", CreatedAt: at(0)}))
}

func created() store.Record {
	return store.Record{ID: "s", Agent: "claude", Parent: "p", Metadata: map[string]string{"title": "ä\x01 \"q\"", "": "x"}, CreatedAt: at(1)}
}

func createLoad(t *testing.T, s store.Store) {
	r := created()
	r.LastSeq, r.UpdatedAt = 7, at(9) // are the store's own
	must(t, s.Create(t.Context(), r))
	loadCreated(t, s)
}

func loadCreated(t *testing.T, s store.Store) {
	got, err := s.Load(t.Context(), "s")
	must(t, err)
	r := created()
	r.UpdatedAt = r.CreatedAt
	if !sameRecord(got, r) {
		t.Errorf("loaded %+v, want %+v", got, r)
	}
}

func sameRecord(a, b store.Record) bool {
	ok := a.CreatedAt.Equal(b.CreatedAt) && a.UpdatedAt.Equal(b.UpdatedAt)
	a.CreatedAt, a.UpdatedAt, b.CreatedAt, b.UpdatedAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return ok && reflect.DeepEqual(a, b)
}

func createTwice(t *testing.T, s store.Store) {
	create(t, s, "s")
	appendN(t, s, "s", 1, 2)
	want(t, "second create", s.Create(t.Context(), store.Record{ID: "s", Agent: "other"}), fs.ErrExist)
	r, err := s.Load(t.Context(), "s")
	must(t, err)
	if r.Agent != "script" || r.LastSeq != 2 {
		t.Errorf("the refused create changed the session: %+v", r)
	}
}

func createEmpty(t *testing.T, s store.Store) {
	want(t, "create", s.Create(t.Context(), store.Record{}), fs.ErrInvalid)
}

func loadOwned(t *testing.T, s store.Store) {
	meta := map[string]string{"k": "v"}
	must(t, s.Create(t.Context(), store.Record{ID: "s", Metadata: meta, CreatedAt: at(0)}))
	meta["k"] = "changed"
	r, err := s.Load(t.Context(), "s")
	must(t, err)
	r.Metadata["k"] = "changed too"
	if r, err = s.Load(t.Context(), "s"); err != nil || r.Metadata["k"] != "v" {
		t.Errorf("metadata %v, %v", r.Metadata, err)
	}
}

func listed(t *testing.T, s store.Store) string {
	t.Helper()
	var ids []string
	for r, err := range s.List(t.Context()) {
		must(t, err)
		ids = append(ids, r.ID)
	}
	return strings.Join(ids, " ")
}

func list(t *testing.T, s store.Store) {
	if got := listed(t, s); got != "" {
		t.Errorf("an empty store lists %q", got)
	}
	for i, id := range []string{"a", "b", "c"} {
		must(t, s.Create(t.Context(), store.Record{ID: id, CreatedAt: at(i)}))
	}
	if got := listed(t, s); got != "c b a" {
		t.Errorf("listed %q", got)
	}
	must(t, s.Append(t.Context(), "a", runnerscripts.Event{Seq: 1, Type: "log", Time: at(30)}))
	if got := listed(t, s); got != "a c b" {
		t.Errorf("after an event listed %q", got)
	}
}

func listLeave(t *testing.T, s store.Store) {
	create(t, s, "a")
	create(t, s, "b")
	for _, err := range s.List(t.Context()) {
		must(t, err)
		break
	}
	create(t, s, "c") // nothing is held any more
}

func deleteAll(t *testing.T, s store.Store) {
	create(t, s, "s")
	create(t, s, "other")
	appendN(t, s, "s", 1, 3)
	appendN(t, s, "other", 1, 1)
	put(t, s, "s", store.PartTranscript, 1, "x")
	must(t, s.Delete(t.Context(), "s"))
	goneAll(t, s)
}

func goneAll(t *testing.T, s store.Store) {
	allNotFound(t, s, "s")
	if got := listed(t, s); got != "other" {
		t.Errorf("listed %q", got)
	}
	if got := read(t, s, "other", 1); len(got) != 1 {
		t.Errorf("the other session has %d events", len(got))
	}
}

func deleteReuse(t *testing.T, s store.Store) {
	create(t, s, "s")
	appendN(t, s, "s", 1, 3)
	put(t, s, "s", store.PartTranscript, 9, "x")
	must(t, s.Delete(t.Context(), "s"))
	create(t, s, "s")
	if got := read(t, s, "s", 1); len(got) != 0 {
		t.Errorf("the new session has %d events", len(got))
	}
	_, _, err := s.Get(t.Context(), "s", store.PartTranscript)
	want(t, "part of the new session", err, fs.ErrNotExist)
	appendN(t, s, "s", 1, 1)
	put(t, s, "s", store.PartTranscript, 1, "y")
}

func notFound(t *testing.T, s store.Store) {
	create(t, s, "s")
	allNotFound(t, s, "unknown")
	allNotFound(t, s, "")
}

func allNotFound(t *testing.T, s store.Store, id string) {
	t.Helper()
	ctx := t.Context()
	_, loadErr := s.Load(ctx, id)
	_, _, getErr := s.Get(ctx, id, store.PartTranscript)
	var eventsErr error
	for _, err := range s.Events(ctx, id, 1) {
		eventsErr = err
	}
	for op, err := range map[string]error{
		"load": loadErr, "get": getErr, "events": eventsErr,
		"delete": s.Delete(ctx, id),
		"append": s.Append(ctx, id, numbered(1)),
		"put":    s.Put(ctx, id, store.PartTranscript, 1, strings.NewReader("x")),
	} {
		want(t, op, err, store.ErrNotFound)
	}
}

func cancelled(t *testing.T, s store.Store) {
	create(t, s, "s")
	appendN(t, s, "s", 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, loadErr := s.Load(ctx, "s")
	_, _, getErr := s.Get(ctx, "s", store.PartTranscript)
	var eventsErr, listErr error
	for _, err := range s.Events(ctx, "s", 1) {
		eventsErr = err
	}
	for _, err := range s.List(ctx) {
		listErr = err
	}
	for op, err := range map[string]error{
		"load": loadErr, "get": getErr, "events": eventsErr, "list": listErr,
		"create": s.Create(ctx, store.Record{ID: "new"}),
		"delete": s.Delete(ctx, "s"),
		"append": s.Append(ctx, "s", numbered(2)),
		"put":    s.Put(ctx, "s", store.PartTranscript, 1, strings.NewReader("x")),
	} {
		want(t, op, err, context.Canceled)
	}
	if got := listed(t, s); got != "s" {
		t.Errorf("listed %q", got)
	}
	if got := read(t, s, "s", 1); len(got) != 1 {
		t.Errorf("%d events", len(got))
	}
}

func errorShape(t *testing.T, s store.Store) {
	_, err := s.Load(t.Context(), "unknown")
	var where *store.Error
	if !errors.As(err, &where) || where.Op != "load" || where.ID != "unknown" || where.Err == nil {
		t.Errorf("error %#v", err)
	}
}
