package storetest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/agentenv-dev/agentenv/session/store"
)

func put(t *testing.T, s store.Store, id string, part store.Part, revision uint64, content string) {
	t.Helper()
	must(t, s.Put(t.Context(), id, part, revision, strings.NewReader(content)))
}

// holds fails unless the part of session "s" is as given.
func holds(t *testing.T, s store.Store, part store.Part, revision uint64, content string) {
	t.Helper()
	r, rev, err := s.Get(t.Context(), "s", part)
	must(t, err)
	data, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	if rev != revision || string(data) != content {
		t.Errorf("%s: revision %d, %d bytes; want revision %d, %d bytes", part, rev, len(data), revision, len(content))
	}
}

// binary is more than any buffer, and every byte there is.
func binary() string {
	var b bytes.Buffer
	for i := range 3 << 20 {
		b.WriteByte(byte(i ^ i>>8))
	}
	return b.String()
}

func putExact(t *testing.T, s store.Store) {
	create(t, s, "s")
	must(t, s.Put(t.Context(), "s", store.PartWorkspace, 3, iotest.HalfReader(strings.NewReader(binary()))))
	getExact(t, s)
}

func getExact(t *testing.T, s store.Store) { holds(t, s, store.PartWorkspace, 3, binary()) }

func putStale(t *testing.T, s store.Store) {
	create(t, s, "s")
	put(t, s, "s", store.PartTranscript, 5, "old")
	put(t, s, "s", store.PartTranscript, 8, "new")
	for _, rev := range []uint64{0, 5, 7} {
		want(t, "older revision", s.Put(t.Context(), "s", store.PartTranscript, rev, strings.NewReader("older")), store.ErrStale)
	}
	getNewest(t, s)
}

func getNewest(t *testing.T, s store.Store) { holds(t, s, store.PartTranscript, 8, "new") }

func putEqual(t *testing.T, s store.Store) {
	create(t, s, "s")
	put(t, s, "s", store.PartTranscript, 5, "first")
	put(t, s, "s", store.PartTranscript, 5, "")
	holds(t, s, store.PartTranscript, 5, "")
}

func putBroken(t *testing.T, s store.Store) {
	create(t, s, "s")
	put(t, s, "s", store.PartWorkspace, 1, "old")
	broken := errors.New("the sandbox is gone")
	err := s.Put(t.Context(), "s", store.PartWorkspace, 2, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)))
	want(t, "put of what cannot be read", err, broken)
	getOld(t, s)
	err = s.Put(t.Context(), "s", store.PartTranscript, 2, iotest.ErrReader(broken))
	want(t, "first put of what cannot be read", err, broken)
	_, _, err = s.Get(t.Context(), "s", store.PartTranscript)
	want(t, "part that could not be put", err, fs.ErrNotExist)
}

func getOld(t *testing.T, s store.Store) { holds(t, s, store.PartWorkspace, 1, "old") }

func putParts(t *testing.T, s store.Store) {
	create(t, s, "s")
	create(t, s, "other")
	put(t, s, "s", store.PartTranscript, 9, "t")
	put(t, s, "s", store.PartWorkspace, 2, "w")
	put(t, s, "other", store.PartTranscript, 1, "o")
	holds(t, s, store.PartTranscript, 9, "t")
	holds(t, s, store.PartWorkspace, 2, "w")
}

func getMissing(t *testing.T, s store.Store) {
	create(t, s, "s")
	put(t, s, "s", store.PartTranscript, 1, "x")
	_, _, err := s.Get(t.Context(), "s", store.PartWorkspace)
	want(t, "get", err, fs.ErrNotExist)
}

func getSnapshot(t *testing.T, s store.Store) {
	create(t, s, "s")
	old := strings.Repeat("old", 100_000)
	put(t, s, "s", store.PartWorkspace, 1, old)
	r, _, err := s.Get(t.Context(), "s", store.PartWorkspace)
	must(t, err)
	head := make([]byte, 10)
	_, err = io.ReadFull(r, head)
	must(t, err)
	put(t, s, "s", store.PartWorkspace, 2, strings.Repeat("new", 100_000))
	rest, err := io.ReadAll(r)
	must(t, errors.Join(err, r.Close()))
	if string(head)+string(rest) != old {
		t.Error("the reader changed from one revision to another")
	}
	holds(t, s, store.PartWorkspace, 2, strings.Repeat("new", 100_000))
}
