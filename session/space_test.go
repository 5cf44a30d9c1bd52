package session

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/agentenv-dev/agentenv/session/store/sqlite"
)

func TestAForkTakesNoRoomForWhatItDoesNotUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sessions, err := sqlite.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sessions.Close(); err != nil {
			t.Error(err)
		}
	})
	const large = 50_000_000
	cfg := scripted(t, steps(write("a", "one")), steps(run("sh", "-c", "head -c 50000000 /dev/urandom >large")))
	cfg.Store = sessions
	s := start(t, cfg)
	complete(t, prompt(t, s, "small"))
	complete(t, prompt(t, s, "large"))
	copies, err := s.ForkFrom(t.Context(), 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, copies[0])
	if got := sizeOnDisk(t, dir); got < large {
		t.Fatalf("the sessions take %d bytes", got)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sizeOnDisk(t, dir); got > large/2 { // the log of an open database keeps 16 MiB
		t.Errorf("without the session the fork takes %d bytes", got)
	}
	checkPruned(t, copies[0])
	if got, err := copies[0].Changes(t.Context(), 1, 2); err != nil || len(got) != 1 || got[0].Path != "a" {
		t.Errorf("the fork has changed %v, %v", got, err)
	}
}

// sizeOnDisk returns the sum of the sizes of all files in a folder.
func sizeOnDisk(t *testing.T, dir string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := os.Stat(name)
		if err == nil {
			size += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}
