package storetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/agentenv-dev/agentenv/session/store"
)

// digest returns the digest of a content.
func digest(content string) store.Digest {
	sum := sha256.Sum256([]byte(content))
	return store.Digest(hex.EncodeToString(sum[:]))
}

func put(t *testing.T, s store.Store, id, content string) store.Digest {
	t.Helper()
	d, err := store.PutBlob(t.Context(), s, id, strings.NewReader(content))
	must(t, err)
	return d
}

func blob(t *testing.T, s store.Store, id string, d store.Digest) string {
	t.Helper()
	r, err := s.Blob(t.Context(), id, d)
	must(t, err)
	data, err := io.ReadAll(r)
	must(t, errors.Join(err, r.Close()))
	return string(data)
}

// holds fails unless the session has the content as a blob.
func holds(t *testing.T, s store.Store, id, content string) {
	t.Helper()
	if got := blob(t, s, id, digest(content)); got != content {
		t.Errorf("the blob of session %q has %d bytes, want %d", id, len(got), len(content))
	}
}

// lacks fails unless the session has no such blob.
func lacks(t *testing.T, s store.Store, id, content string) {
	t.Helper()
	_, err := s.Blob(t.Context(), id, digest(content))
	want(t, "blob of session "+id, err, fs.ErrNotExist)
}

// binary returns content that exceeds any buffer and contains every byte.
func binary() string {
	var b bytes.Buffer
	for i := range 3 << 20 {
		b.WriteByte(byte(i ^ i>>8))
	}
	return b.String()
}

// contents returns contents of sizes that a store may handle in different ways.
func contents() []string {
	return []string{"", "small", strings.Repeat("x", 1<<16), binary(), "small again"}
}

// readers yields readers that return the contents in pieces.
func readers(contents ...string) iter.Seq2[io.Reader, error] {
	return func(yield func(io.Reader, error) bool) {
		for _, c := range contents {
			if !yield(iotest.HalfReader(strings.NewReader(c)), nil) {
				return
			}
		}
	}
}

func putExact(t *testing.T, s store.Store) {
	create(t, s, "s")
	got, err := s.PutBlobs(t.Context(), "s", readers(contents()...))
	must(t, err)
	var all []store.Digest
	for _, c := range contents() {
		all = append(all, digest(c))
	}
	if !slices.Equal(got, all) {
		t.Errorf("digests %v, want %v", got, all)
	}
	getExact(t, s)
}

func getExact(t *testing.T, s store.Store) {
	for _, c := range contents() {
		holds(t, s, "s", c)
	}
}

func putNothing(t *testing.T, s store.Store) {
	create(t, s, "s")
	if got, err := s.PutBlobs(t.Context(), "s", readers()); err != nil || len(got) != 0 {
		t.Errorf("digests %v, %v", got, err)
	}
}

// halves returns the truncated contents for putBroken, small and large.
func halves() []string { return []string{"half", binary()} }

func putBroken(t *testing.T, s store.Store) {
	create(t, s, "s")
	put(t, s, "s", "old")
	broken := errors.New("the sandbox is gone")
	for _, half := range halves() {
		_, err := s.PutBlobs(t.Context(), "s", func(yield func(io.Reader, error) bool) {
			yield(io.MultiReader(strings.NewReader(half), iotest.ErrReader(broken)), nil)
		})
		want(t, "blob that cannot be read", err, broken)
		_, err = s.PutBlobs(t.Context(), "s", func(yield func(io.Reader, error) bool) { yield(nil, broken) })
		want(t, "blob that cannot be opened", err, broken)
	}
	noHalves(t, s)
}

// putTruncated reads what is like an archive whose end is missing.
func putTruncated(t *testing.T, s store.Store) {
	create(t, s, "s")
	put(t, s, "s", "old")
	for _, half := range halves() {
		_, err := store.PutBlob(t.Context(), s, "s", io.MultiReader(strings.NewReader(half), iotest.ErrReader(io.ErrUnexpectedEOF)))
		want(t, "blob whose end is missing", err, io.ErrUnexpectedEOF)
	}
	noHalves(t, s)
}

// many returns thousands of contents. Some are equal.
func many() []string {
	all := make([]string, 3000)
	for i := range all {
		all[i] = strings.Repeat(fmt.Sprint(i%2000, " "), 1+i%50)
	}
	return all
}

func putMany(t *testing.T, s store.Store) {
	create(t, s, "s")
	for range 2 {
		got, err := s.PutBlobs(t.Context(), "s", readers(many()...))
		must(t, err)
		var all []store.Digest
		for _, c := range many() {
			all = append(all, digest(c))
		}
		if !slices.Equal(got, all) {
			t.Errorf("%d digests are not those of the %d contents", len(got), len(all))
		}
	}
	getMany(t, s)
}

func getMany(t *testing.T, s store.Store) {
	for _, c := range many() {
		holds(t, s, "s", c)
	}
}

func noHalves(t *testing.T, s store.Store) {
	for _, half := range halves() {
		lacks(t, s, "s", half)
	}
	holds(t, s, "s", "old")
}

// putWaiting puts a blob whose reader blocks until other sessions have written.
func putWaiting(t *testing.T, s store.Store) {
	create(t, s, "s")
	create(t, s, "other")
	var seq uint64
	_, err := s.PutBlobs(t.Context(), "s", func(yield func(io.Reader, error) bool) {
		for _, c := range contents() {
			seq++
			appendN(t, s, "other", seq, seq)
			put(t, s, "other", c)
			if !yield(strings.NewReader(c), nil) {
				return
			}
		}
	})
	must(t, err)
	getExact(t, s)
}

func putShared(t *testing.T, s store.Store) {
	create(t, s, "s")
	create(t, s, "other")
	for _, c := range contents() {
		put(t, s, "s", c)
		lacks(t, s, "other", c)
		put(t, s, "other", c)
		put(t, s, "other", c)
	}
	must(t, s.Delete(t.Context(), "other"))
	getExact(t, s)
	for _, c := range contents() {
		must(t, s.RemoveBlobs(t.Context(), "s", digest(c)))
		lacks(t, s, "s", c)
		put(t, s, "s", c)
	}
	getExact(t, s)
}

// putRace puts and removes the same contents in two sessions at once: neither may remove the
// other's blobs.
func putRace(t *testing.T, s store.Store) {
	const rounds = 10
	var wg sync.WaitGroup
	for _, id := range []string{"a", "b"} {
		create(t, s, id)
		wg.Go(func() {
			for range rounds {
				for _, c := range []string{"small", strings.Repeat("large", 1<<16)} {
					d, err := store.PutBlob(t.Context(), s, id, strings.NewReader(c))
					if err != nil {
						t.Error(err)
						return
					}
					r, err := s.Blob(t.Context(), id, d)
					if err != nil {
						t.Error(err)
						return
					}
					got, err := io.ReadAll(r)
					if err = errors.Join(err, r.Close(), s.RemoveBlobs(t.Context(), id, d)); err != nil || string(got) != c {
						t.Errorf("read %d bytes, %v", len(got), err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func blobMissing(t *testing.T, s store.Store) {
	create(t, s, "s")
	put(t, s, "s", "x")
	for _, d := range []store.Digest{digest("y"), "", "..", "../../x", store.Digest(strings.ToUpper(string(digest("x"))))} {
		_, err := s.Blob(t.Context(), "s", d)
		want(t, "blob "+string(d), err, fs.ErrNotExist)
		must(t, s.RemoveBlobs(t.Context(), "s", d))
	}
	holds(t, s, "s", "x")
}

func removeBlobs(t *testing.T, s store.Store) {
	create(t, s, "s")
	for _, c := range contents() {
		put(t, s, "s", c)
	}
	put(t, s, "s", "kept")
	for _, c := range contents() {
		must(t, s.RemoveBlobs(t.Context(), "s", digest(c), digest("unknown")))
	}
	removedBlobs(t, s)
}

func removedBlobs(t *testing.T, s store.Store) {
	for _, c := range contents() {
		lacks(t, s, "s", c)
	}
	holds(t, s, "s", "kept")
}

func removeOpen(t *testing.T, s store.Store) {
	for i, c := range []string{strings.Repeat("s", 1000), binary()} {
		id := string(rune('a' + i))
		create(t, s, id)
		d := put(t, s, id, c)
		r, err := s.Blob(t.Context(), id, d)
		must(t, err)
		head := make([]byte, 10)
		_, err = io.ReadFull(r, head)
		must(t, err)
		must(t, s.RemoveBlobs(t.Context(), id, d))
		rest, err := io.ReadAll(r)
		must(t, errors.Join(err, r.Close()))
		if string(head)+string(rest) != c {
			t.Error("the reader did not read the blob to its end")
		}
	}
}
