package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store"
)

// churn appends to the session "s" and stores blobs, and makes and removes sessions with large
// blobs, until ctx is done.
func churn(ctx context.Context, t *testing.T, s *Store) {
	for n := uint64(1); ctx.Err() == nil; n++ {
		id := fmt.Sprint(n)
		errs := []error{
			s.Append(t.Context(), "s", numbered(n)),
			s.Create(t.Context(), store.Record{ID: id}),
		}
		_, err := store.PutBlob(t.Context(), s, "s", bytes.NewReader(content(n)))
		errs = append(errs, err)
		_, err = store.PutBlob(t.Context(), s, id, bytes.NewReader(content(3*n+3000)))
		if err = errors.Join(append(errs, err, s.Delete(t.Context(), id))...); err != nil {
			t.Error(err)
			return
		}
	}
}

// checkBackup reads all of a backup, and then uses it as a store.
func checkBackup(t *testing.T, dir string) {
	t.Helper()
	for _, cfg := range []Config{{ReadOnly: true}, {}} {
		s, err := cfg.Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		for r, err := range s.List(t.Context(), store.Filter{}) {
			if err != nil {
				t.Fatal(err)
			}
			if r.ID == "s" {
				check(t, s, 0)
			}
			checkBlobs(t, s, r.ID)
		}
		if !cfg.ReadOnly {
			r, err := s.Load(t.Context(), "s")
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Append(t.Context(), "s", numbered(r.LastSeq+1)); err != nil {
				t.Error(err)
			}
			if got, err := s.Collect(t.Context(), false); err != nil {
				t.Errorf("collect: %q, %v", got, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkBlobs reads all blobs of a session.
func checkBlobs(t *testing.T, s *Store, id string) {
	t.Helper()
	rows, err := s.r.QueryContext(t.Context(), "SELECT lower(hex(digest)) FROM blob JOIN session_blob ON blob = blob.n JOIN session ON session = session.n WHERE id = ?", id)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []store.Digest
	for rows.Next() {
		var d store.Digest
		if err := rows.Scan(&d); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		r, err := s.Blob(t.Context(), id, d)
		if err == nil {
			_, err = new(bytes.Buffer).ReadFrom(r)
			err = errors.Join(err, r.Close())
		}
		if err != nil {
			t.Errorf("blob of session %s: %v", id, err)
		}
	}
}

func TestABackupOfAStoreInUseIsWhole(t *testing.T) {
	s, dir := withSession(t)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { churn(ctx, t, s) })
	defer wg.Wait()
	defer stop()
	other := opened(t, dir) // as another program
	for i := range 5 {
		to := filepath.Join(t.TempDir(), "backup")
		if err := other.Backup(t.Context(), to); err != nil {
			t.Fatal(err)
		}
		checkBackup(t, to)
		if left, err := os.ReadDir(filepath.Dir(to)); err != nil || len(left) != 1 {
			t.Errorf("backup %d left %v, %v", i, left, err)
		}
		if err := other.Backup(t.Context(), to); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a backup to a folder that exists: %v", err)
		}
	}
}

// backupForever makes backups one after the other, and prints the number of each when it begins.
func backupForever(ctx context.Context, dir string) error {
	s, err := Config{ReadOnly: true}.Open(ctx, dir)
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		fmt.Println(n)
		if err := s.Backup(ctx, filepath.Join(dir, fmt.Sprintf("backup-%d", n))); err != nil {
			return err
		}
	}
}

func TestABackupThatIsKilledIsMissingOrWhole(t *testing.T) {
	s, dir := withSession(t)
	for n := range uint64(20) {
		fill := []byte(nil)
		for range 5 {
			fill = append(fill, content(3*n)...)
		}
		put(t, s, fill)
	}
	fill(t, s, 50)
	cmd := childCommand(t, "backup", dir)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	for range 1 + rand.IntN(4) {
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	made, err := filepath.Glob(filepath.Join(dir, "backup-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range made {
		checkBackup(t, to)
	}
	// The next one removes what is left, but not what runs.
	to := filepath.Join(dir, "next")
	parts := []string{filepath.Join(dir, ".next.part-killed"), filepath.Join(dir, ".next.part-running")}
	for _, part := range parts {
		if err := os.MkdirAll(filepath.Join(part, blobFolder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	unlock, err := lockPart(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := s.Backup(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".next.part-*")); err != nil || fmt.Sprint(left) != fmt.Sprint(parts[1:]) {
		t.Errorf("left %q, %v", left, err)
	}
}
