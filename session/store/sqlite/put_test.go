package sqlite

import (
	"bytes"
	"os"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

// A removal that fails after it has removed files leaves their blobs without them. A session that
// has found such a file just before stores it again.
func TestAFileThatGoesBeforeTheTransactionIsStoredAgain(t *testing.T) {
	s, _ := withSession(t)
	data := content(3)
	d := put(t, s, data)
	p := &putting{s: s, id: "s"}
	b, err := p.read(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	p.pending = []pendingBlob{b}
	known, err := p.known(t.Context(), s.r)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.makeReady(known); err != nil || p.pending[0].ready {
		t.Fatalf("a file that is there is written again, or %v", err)
	}
	if err := os.Remove(s.file(rawDigest(d))); err != nil {
		t.Fatal(err)
	}
	if err := p.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := readBlob(t, s, d); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
}

// Blobs that another session removes while a call of PutBlobs works are stored nevertheless.
func TestBlobsThatGoBeforeTheTransactionAreStored(t *testing.T) {
	s, _ := withSession(t)
	if err := s.Create(t.Context(), store.Record{ID: "other"}); err != nil {
		t.Fatal(err)
	}
	contents := [][]byte{content(1), content(3), prose(300_000), prose(3 << 20), noise(4, 3<<20)}
	putSequence(t, s, "other", contents)
	p := &putting{s: s, id: "s"}
	for _, c := range contents {
		b, err := p.read(bytes.NewReader(c))
		if err != nil {
			t.Fatal(err)
		}
		p.pending = append(p.pending, b)
	}
	known, err := p.known(t.Context(), s.r)
	if err != nil || len(known) != len(contents) {
		t.Fatal(known, err)
	}
	if err := p.makeReady(known); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	if err := p.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range contents {
		if got, err := readBlob(t, s, blobOf(c)); err != nil || !bytes.Equal(got, c) {
			t.Errorf("of %d bytes %d were read, %v", len(c), len(got), err)
		}
	}
}
