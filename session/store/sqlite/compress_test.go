package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

// prose returns text that can be compressed to about a fourth.
func prose(size int) []byte {
	var b bytes.Buffer
	random := noise(uint64(size), size/4+16)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "line %d of a text in which much comes again, but for %x\n", i, random[:16])
		random = random[16:]
	}
	return b.Bytes()[:size]
}

// sizes are of blobs that are stored in different ways.
var sizes = []int{100, 1000, maxInline, maxInline + 1, 400 << 10, maxWhole, maxWhole + 1, 3 << 20}

func TestBlobsAreCompressedWhereThatSavesRoom(t *testing.T) {
	for what, c := range map[string]struct {
		content     func(size int) []byte
		least, most int // bytes on the disk, of a hundred
	}{
		"text":  {prose, 1, 40},
		"noise": {func(size int) []byte { return noise(uint64(size), size) }, 100, 110},
	} {
		t.Run(what, func(t *testing.T) {
			s, dir := withSession(t)
			execute(t, s, "PRAGMA wal_checkpoint(TRUNCATE)")
			before, total := diskUsage(t, dir), 0
			for _, size := range sizes {
				total += size
				put(t, s, c.content(size))
			}
			execute(t, s, "PRAGMA wal_checkpoint(TRUNCATE)")
			if took := int(diskUsage(t, dir) - before); took < total*c.least/100 || took > total*c.most/100 {
				t.Errorf("%d bytes take %d", total, took)
			}
			got, err := s.size(t.Context())
			if err != nil || got > diskUsage(t, dir) {
				t.Errorf("the store says that it takes %d bytes, %v", got, err)
			}
			for _, s := range []*Store{s, opened(t, dir)} {
				for _, size := range sizes {
					if got, err := readBlob(t, s, blobOf(c.content(size))); err != nil || !bytes.Equal(got, c.content(size)) {
						t.Errorf("of %d bytes %d were read, %v", size, len(got), err)
					}
				}
			}
		})
	}
}

// A compressed blob is verified like any other, whatever its record says.
func TestADamagedCompressedBlobIsReported(t *testing.T) {
	for _, size := range []int{1000, 400 << 10, maxWhole + 1} { // in the database, in a file, a stream
		for what, damage := range map[string]string{
			"another size":       "UPDATE blob SET plain = plain - 1",
			"a larger size":      "UPDATE blob SET plain = plain + 1",
			"a huge size":        "UPDATE blob SET plain = 1 << 60",
			"a negative size":    "UPDATE blob SET plain = -1",
			"a size that is not": "UPDATE blob SET plain = 'secret'",
			"no size":            "UPDATE blob SET plain = 0",
			"a part":             "UPDATE blob SET content = substr(content, 1, length(content) / 2)",
		} {
			t.Run(fmt.Sprintf("%s of %d", what, size), func(t *testing.T) {
				s, _ := withSession(t)
				d := put(t, s, prose(size))
				file := s.file(rawDigest(d))
				info, err := os.Stat(file)
				if (err == nil) != (size > 1000) {
					t.Fatalf("the file of %d bytes: %v", size, err)
				}
				if err == nil && what == "a part" {
					if err := os.Truncate(file, info.Size()/2); err != nil {
						t.Fatal(err)
					}
				}
				execute(t, s, damage+" WHERE plain > 0")
				got, err := readBlob(t, s, d)
				right := err == nil && bytes.Equal(got, prose(size)) // as a stream ends before a larger size
				if !right && !errors.Is(err, store.ErrCorrupt) {
					t.Errorf("read %d bytes, %v", len(got), err)
				}
			})
		}
	}
}

// Stores of earlier versions have contents as they are.
func TestBlobsOfAnOlderVersionAreReadAndStay(t *testing.T) {
	dir := t.TempDir()
	old, err := (Config{}).open(t.Context(), dir, busyTimeout, migrations[:4])
	if err != nil {
		t.Fatal(err)
	}
	execute(t, old, `INSERT INTO session (id, parent, created, updated, last_seq, stored, record, state_seq)
		VALUES ('s', '', '2026-01-02T03:04:05Z', '2026-01-02T03:04:06Z', 0, 1, '{}', 0)`)
	execute(t, old, "INSERT INTO large (session) SELECT n FROM session")
	small, large := prose(10_000), prose(200_000)
	execute(t, old, "INSERT INTO blob (digest, content) VALUES (?, ?), (?, NULL)",
		rawDigest(blobOf(small)), small, rawDigest(blobOf(large)))
	execute(t, old, "INSERT INTO session_blob (session, blob) SELECT session.n, blob.n FROM session, blob")
	file := old.file(rawDigest(blobOf(large)))
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, large, 0o600), old.Close()); err != nil {
		t.Fatal(err)
	}
	s := opened(t, dir)
	for _, again := range []bool{false, true} {
		for _, content := range [][]byte{small, large} {
			if again {
				put(t, s, content)
			}
			if got, err := readBlob(t, s, blobOf(content)); err != nil || !bytes.Equal(got, content) {
				t.Errorf("of %d bytes %d were read, %v", len(content), len(got), err)
			}
		}
	}
	if info, err := os.Stat(file); err != nil || info.Size() != int64(len(large)) {
		t.Errorf("the file was written again: %v, %v", info, err)
	}
	// A damaged one is replaced, and its file is garbage.
	if err := os.Truncate(file, 7); err != nil {
		t.Fatal(err)
	}
	put(t, s, large)
	if got, err := readBlob(t, s, blobOf(large)); err != nil || !bytes.Equal(got, large) {
		t.Errorf("put again: %d bytes, %v", len(got), err)
	}
	if got, err := s.Collect(t.Context(), false); err != nil || len(got) != 1 {
		t.Errorf("collected %q, %v", got, err)
	}
	if got, err := readBlob(t, s, blobOf(large)); err != nil || !bytes.Equal(got, large) {
		t.Errorf("after the collection: %d bytes, %v", len(got), err)
	}
}

func TestABackupHasCompressedBlobs(t *testing.T) {
	s, _ := withSession(t)
	for _, size := range sizes {
		put(t, s, prose(size))
	}
	to := filepath.Join(t.TempDir(), "backup")
	if err := s.Backup(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	checkBackup(t, to)
}
