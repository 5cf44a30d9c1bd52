package sqlite

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

// manySmall returns n contents that cannot be compressed, of 2 KiB each.
func manySmall(n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = noise(uint64(i), 2<<10)
	}
	return all
}

// Delete gives room back at once, also of what is in the database, and takes nothing from others.
func TestTheRoomOfADeletedSessionIsFree(t *testing.T) {
	s, dir := withSession(t)
	other := opened(t, dir) // of another program, so that the database stays open
	contents := manySmall(10_000)
	shared := contents[:100]
	if err := s.Create(t.Context(), store.Record{ID: "other"}); err != nil {
		t.Fatal(err)
	}
	putSequence(t, s, "other", shared)
	putSequence(t, s, "s", contents)
	fill(t, s, 100)
	database := func() int64 {
		t.Helper()
		execute(t, s, "PRAGMA wal_checkpoint(PASSIVE)")
		info, err := os.Stat(filepath.Join(dir, Database))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := database()
	if before < 20<<20 {
		t.Fatalf("the database has %d bytes", before)
	}
	if err := s.Delete(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if after := database(); after > 5<<20 {
		t.Errorf("the database has %d bytes, and before the session was removed %d", after, before)
	}
	if size, err := s.size(t.Context()); err != nil || size > 1<<20 {
		t.Errorf("the other session takes %d bytes, %v", size, err)
	}
	for _, c := range shared {
		r, err := other.Blob(t.Context(), "other", blobOf(c))
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := got.ReadFrom(r); err != nil || !bytes.Equal(got.Bytes(), c) {
			t.Errorf("read %d bytes, %v", got.Len(), err)
		}
	}
}

// Many blobs are removed in several transactions. Each must run.
func TestManyBlobsAreRemoved(t *testing.T) {
	s, _ := withSession(t)
	contents := manySmall(2*purgedAtOnce + 1)
	contents = append(contents, noise(1, maxInline+1))
	putSequence(t, s, "s", contents)
	digests := make([]store.Digest, len(contents))
	for i, c := range contents {
		digests[i] = blobOf(c)
	}
	if err := s.RemoveBlobs(t.Context(), "s", digests[1:]...); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"blob", "session_blob"} {
		var n int
		if err := s.r.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil || n != 1 {
			t.Errorf("%d rows in %s, %v", n, table, err)
		}
	}
	if got, err := readBlob(t, s, digests[0]); err != nil || !bytes.Equal(got, contents[0]) {
		t.Errorf("the one that was not removed: %d bytes, %v", len(got), err)
	}
	if _, err := os.Stat(s.file(rawDigest(digests[len(digests)-1]))); err == nil {
		t.Error("the file of the large one is there")
	}
}
