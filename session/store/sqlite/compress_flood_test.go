//go:build !race

package sqlite

import (
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/agentenv-dev/agentenv/session/store"
)

// A hostile record makes the store neither allocate much nor return anything.
func TestFloodOfADecompressedBlob(t *testing.T) {
	hostile := bomb(t)
	for _, plain := range []int64{1, 1000, maxWhole, maxWhole + 1, 1 << 30, 1 << 60} {
		for _, size := range []int{1000, 700 << 10, 3 << 20} { // in the database, in a file, a stream
			s, _ := withSession(t)
			var d store.Digest
			if size == 1000 {
				d = put(t, s, prose(size))
				execute(t, s, "UPDATE blob SET content = ?, plain = ?", hostile, plain)
			} else {
				d = put(t, s, noise(1, size))
				execute(t, s, "UPDATE blob SET plain = ?", plain)
				if err := os.WriteFile(s.file(rawDigest(d)), hostile, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			n, err := drain(t, s, d)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("a size of %d: %v", plain, err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 || n > plain {
				t.Errorf("a size of %d: %d bytes were read, and %d allocated", plain, n, took)
			}
		}
	}
}

// bomb is a few kilobytes that decompress to 128 MiB.
func bomb(t *testing.T) []byte {
	t.Helper()
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	for range 128 {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// drain reads a blob without keeping it.
func drain(t *testing.T, s *Store, d store.Digest) (int64, error) {
	t.Helper()
	r, err := s.Blob(t.Context(), "s", d)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, r)
	return n, errors.Join(err, r.Close())
}
