package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

// A page that is damaged takes a few records with it. The others can be listed, read and exported.
func TestADamagedPageHidesNoOtherRecord(t *testing.T) {
	const sessions, page = 40, 4096
	s, dir := withSession(t)
	for n := range sessions - 1 {
		id := fmt.Sprintf("id-%d", n)
		if err := s.Create(t.Context(), store.Record{ID: id, Title: strings.Repeat(id, 100), Config: []byte(`{}`)}); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, s, "PRAGMA wal_checkpoint(TRUNCATE)")
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, Database))
	if err != nil {
		t.Fatal(err)
	}
	partly := 0
	for at := page; at < len(good); at += page {
		bad := bytes.Clone(good)
		for i := range bad[at : at+page] {
			bad[at+i] ^= 0x55
		}
		damaged := t.TempDir()
		if err := os.WriteFile(filepath.Join(damaged, Database), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), damaged)
		if err != nil {
			corrupt(t, err)
			continue
		}
		listed, whole := map[string]bool{}, 0
		for r, err := range s.List(t.Context(), store.Filter{}) {
			if err != nil {
				corrupt(t, err)
			} else if whole++; listed[r.ID] {
				t.Errorf("page %d: session %q is listed twice", at/page, r.ID)
			}
			listed[r.ID] = true
		}
		if whole > 0 && whole < sessions {
			partly++
			if err := s.Check(t.Context()); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("page %d: check: %v", at/page, err)
			}
			if len(listed) != sessions || listed[""] {
				t.Errorf("page %d: %d sessions with an ID, %d of them whole", at/page, len(listed), whole)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if partly < 5 {
		t.Errorf("%d damaged pages left a part of the list", partly)
	}
}
