package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/runnerscripts"
	"github.com/agentenv-dev/agentenv/session/store"
)

// at returns a time that every store can hold.
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
	return store.Record{
		ID: "s", Agent: "claude", Parent: "p", Title: "a title", Summary: "lines\nof it", Status: "idle",
		Metadata:  map[string]string{"k": "ä\x01 \"q\"", "": "x"},
		Usage:     runnerscripts.Usage{InputTokens: 5, OutputTokens: 7},
		Delegated: runnerscripts.Usage{InputTokens: 3},
		Sandbox:   store.Sandbox{Type: "docker", ID: "box"},
		Sandboxes: []string{"first", "box"},
		Config:    json.RawMessage(`{"b": 1.00, "a":"\u00e4"}`), State: json.RawMessage(`[ ]`), StateSeq: 9,
		CreatedAt: at(1),
	}
}

func createLoad(t *testing.T, s store.Store) {
	r := created()
	r.LastSeq, r.UpdatedAt = 7, at(9) // set by the store
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

// changed returns the record that updateAll must produce.
func changed() store.Record {
	r := created()
	r.Agent, r.Title, r.Summary, r.Status = "codex", "new", "", "failed"
	r.Metadata, r.Usage, r.Sandbox = map[string]string{"new": "x"}, runnerscripts.Usage{}, store.Sandbox{}
	r.Config, r.State, r.StateSeq = nil, json.RawMessage(`{"x": [1,  2]}`), 12
	return r
}

func updateAll(t *testing.T, s store.Store) {
	must(t, s.Create(t.Context(), created()))
	appendN(t, s, "s", 1, 2)
	must(t, s.Update(t.Context(), "s", func(r *store.Record) {
		if r.Title != "a title" || r.LastSeq != 2 || string(r.State) != "[ ]" {
			t.Errorf("the record to be changed is %+v", r)
		}
		*r = changed()
		r.ID, r.Parent, r.CreatedAt, r.UpdatedAt, r.LastSeq = "x", "x", at(30), at(31), 99 // set by the store
	}))
	updatedAll(t, s)
}

func updatedAll(t *testing.T, s store.Store) {
	got, err := s.Load(t.Context(), "s")
	must(t, err)
	w := changed()
	w.LastSeq, w.UpdatedAt = 2, at(1)
	if !sameRecord(got, w) {
		t.Errorf("loaded %+v, want %+v", got, w)
	}
	if got := read(t, s, "s", 1); len(got) != 2 {
		t.Errorf("%d events", len(got))
	}
}

func updateRace(t *testing.T, s store.Store) {
	create(t, s, "s")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if err := s.Update(t.Context(), "s", func(r *store.Record) { r.StateSeq++ }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if r, err := s.Load(t.Context(), "s"); err != nil || r.StateSeq != 40 {
		t.Errorf("%d updates of 40 are there, %v", r.StateSeq, err)
	}
}

func listFilter(t *testing.T, s store.Store) {
	must(t, s.Create(t.Context(), store.Record{ID: "a", Agent: "claude", Status: "idle", Metadata: map[string]string{"k": "v", "l": "w"}, CreatedAt: at(0)}))
	must(t, s.Create(t.Context(), store.Record{ID: "b", Agent: "codex", Status: "idle", Parent: "a", Metadata: map[string]string{"k": ""}, CreatedAt: at(10)}))
	must(t, s.Create(t.Context(), store.Record{ID: "c", Agent: "codex", Status: "running", CreatedAt: at(20)}))
	for _, c := range []struct {
		filter store.Filter
		want   string
	}{
		{store.Filter{}, "c b a"},
		{store.Filter{Agent: "codex"}, "c b"},
		{store.Filter{Status: "idle"}, "b a"},
		{store.Filter{Parent: "a"}, "b"},
		{store.Filter{Metadata: map[string]string{"k": "v"}}, "a"},
		{store.Filter{Metadata: map[string]string{"k": "v", "l": "x"}}, ""},
		{store.Filter{Metadata: map[string]string{"k": ""}}, "b"},
		{store.Filter{Since: at(10)}, "c b"},
		{store.Filter{Since: at(21)}, ""},
		{store.Filter{Limit: 2}, "c b"},
		{store.Filter{Agent: "codex", Status: "idle", Limit: 1}, "b"},
	} {
		if got := listed(t, s, c.filter); got != c.want {
			t.Errorf("%+v lists %q, want %q", c.filter, got, c.want)
		}
	}
}

func listRecords(t *testing.T, s store.Store) {
	must(t, s.Create(t.Context(), created()))
	for r, err := range s.List(t.Context(), store.Filter{}) {
		must(t, err)
		w := created()
		w.UpdatedAt, w.State = w.CreatedAt, nil
		if !sameRecord(r, w) {
			t.Errorf("listed %+v, want %+v", r, w)
		}
		r.Metadata["k"] = "changed"
	}
	loadCreated(t, s)
}

func listed(t *testing.T, s store.Store, f store.Filter) string {
	t.Helper()
	var ids []string
	for r, err := range s.List(t.Context(), f) {
		must(t, err)
		ids = append(ids, r.ID)
	}
	return strings.Join(ids, " ")
}

func list(t *testing.T, s store.Store) {
	if got := listed(t, s, store.Filter{}); got != "" {
		t.Errorf("an empty store lists %q", got)
	}
	for i, id := range []string{"a", "b", "c"} {
		must(t, s.Create(t.Context(), store.Record{ID: id, CreatedAt: at(i)}))
	}
	if got := listed(t, s, store.Filter{}); got != "c b a" {
		t.Errorf("listed %q", got)
	}
	must(t, s.Append(t.Context(), "a", runnerscripts.Event{Seq: 1, Type: "log", Time: at(30)}))
	if got := listed(t, s, store.Filter{}); got != "a c b" {
		t.Errorf("after an event listed %q", got)
	}
}

func listLeave(t *testing.T, s store.Store) {
	create(t, s, "a")
	create(t, s, "b")
	for _, err := range s.List(t.Context(), store.Filter{}) {
		must(t, err)
		break
	}
	create(t, s, "c") // nothing may be locked any more
}

func deleteAll(t *testing.T, s store.Store) {
	create(t, s, "s")
	create(t, s, "other")
	appendN(t, s, "s", 1, 3)
	appendN(t, s, "other", 1, 1)
	put(t, s, "s", "x")
	must(t, s.Delete(t.Context(), "s"))
	goneAll(t, s)
}

func goneAll(t *testing.T, s store.Store) {
	allNotFound(t, s, "s")
	if got := listed(t, s, store.Filter{}); got != "other" {
		t.Errorf("listed %q", got)
	}
	if got := read(t, s, "other", 1); len(got) != 1 {
		t.Errorf("the other session has %d events", len(got))
	}
}

func deleteReuse(t *testing.T, s store.Store) {
	create(t, s, "s")
	appendN(t, s, "s", 1, 3)
	put(t, s, "s", "x")
	must(t, s.Delete(t.Context(), "s"))
	create(t, s, "s")
	if got := read(t, s, "s", 1); len(got) != 0 {
		t.Errorf("the new session has %d events", len(got))
	}
	lacks(t, s, "s", "x")
	appendN(t, s, "s", 1, 1)
	put(t, s, "s", "y")
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
	_, blobErr := s.Blob(ctx, id, digest("x"))
	_, putErr := store.PutBlob(ctx, s, id, strings.NewReader("x"))
	_, lockErr := s.Lock(ctx, id)
	var eventsErr error
	for _, err := range s.Events(ctx, id, 1) {
		eventsErr = err
	}
	for op, err := range map[string]error{
		"load": loadErr, "blob": blobErr, "put": putErr, "lock": lockErr, "events": eventsErr,
		"delete": s.Delete(ctx, id),
		"append": s.Append(ctx, id, numbered(1)),
		"update": s.Update(ctx, id, func(*store.Record) {}),
		"fork":   s.Fork(ctx, id, 0, store.Record{ID: "f"}),
		"remove": s.RemoveBlobs(ctx, id, digest("x")),
	} {
		want(t, op, err, store.ErrNotFound)
	}
}

func cancelled(t *testing.T, s store.Store) {
	create(t, s, "s")
	appendN(t, s, "s", 1, 1)
	put(t, s, "s", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, loadErr := s.Load(ctx, "s")
	_, blobErr := s.Blob(ctx, "s", digest("x"))
	_, putErr := store.PutBlob(ctx, s, "s", strings.NewReader("new"))
	_, lockErr := s.Lock(ctx, "s")
	var eventsErr, listErr error
	for _, err := range s.Events(ctx, "s", 1) {
		eventsErr = err
	}
	for _, err := range s.List(ctx, store.Filter{}) {
		listErr = err
	}
	for op, err := range map[string]error{
		"load": loadErr, "blob": blobErr, "put": putErr, "lock": lockErr, "events": eventsErr, "list": listErr,
		"create": s.Create(ctx, store.Record{ID: "new"}),
		"delete": s.Delete(ctx, "s"),
		"append": s.Append(ctx, "s", numbered(2)),
		"update": s.Update(ctx, "s", func(r *store.Record) { r.Title = "new" }),
		"fork":   s.Fork(ctx, "s", 0, store.Record{ID: "f"}),
		"remove": s.RemoveBlobs(ctx, "s", digest("x")),
	} {
		want(t, op, err, context.Canceled)
	}
	if got := listed(t, s, store.Filter{}); got != "s" {
		t.Errorf("listed %q", got)
	}
	if got := read(t, s, "s", 1); len(got) != 1 {
		t.Errorf("%d events", len(got))
	}
	holds(t, s, "s", "x")
	lacks(t, s, "s", "new")
	if r, err := s.Load(t.Context(), "s"); err != nil || r.Title != "" {
		t.Errorf("record %+v, %v", r, err)
	}
	must(t, lock(t, s, "s")())
}

func errorShape(t *testing.T, s store.Store) {
	_, err := s.Load(t.Context(), "unknown")
	var where *store.Error
	if !errors.As(err, &where) || where.Op != "load" || where.ID != "unknown" || where.Err == nil {
		t.Errorf("error %#v", err)
	}
}
