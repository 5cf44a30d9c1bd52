package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestAFolderThatOthersCanReadIsRefused(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	root, err := Open("x")
	if err != nil {
		t.Fatal(err)
	}
	root.Close()
	if err := os.Chmod(filepath.Join(state, "agentenv", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if root, err := Open("x"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("opened %v, %v", root, err)
	}
}

func TestPruneRemovesTheOldest(t *testing.T) {
	for _, c := range []struct {
		files int
		bytes int64
		left  []string
	}{
		{10, 1000, []string{"a", "b", "c"}},
		{2, 1000, []string{"b", "c"}},
		{10, 200, []string{"b", "c"}},
		{10, 199, []string{"c"}},
		{0, 1000, nil},
	} {
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		for i, name := range []string{"c", "b", "a"} {
			at := time.Now().Add(-time.Duration(i) * time.Hour)
			if err := errors.Join(root.WriteFile(name, make([]byte, 100), 0o600), root.Chtimes(name, at, at)); err != nil {
				t.Fatal(err)
			}
		}
		if err := Prune(root, c.files, c.bytes); err != nil {
			t.Error(err)
		}
		entries, err := fs.ReadDir(root.FS(), ".")
		var left []string
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if err != nil || !slices.Equal(left, c.left) {
			t.Errorf("%d files, %d bytes: left %q, %v", c.files, c.bytes, left, err)
		}
	}
}

// What programs change at the same time is all there afterwards, and an error changes nothing.
func TestABookIsChangedByOneAtATime(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	b := Book[map[string]int]{Folder: "books", Name: "b", MaxSize: 1 << 10}
	if got, err := b.Read(); err != nil || got != nil {
		t.Errorf("before the first change: %v, %v", got, err)
	}
	var changes sync.WaitGroup
	const most = 5 // each waits for the others, which write to the disk, for ten seconds at most
	for i := range most {
		changes.Go(func() {
			err := b.Change(b.Read, func(v map[string]int) (map[string]int, error) {
				if v == nil {
					v = map[string]int{"a long name that is there at first only": 0}
				} else {
					delete(v, "a long name that is there at first only")
				}
				v[strconv.Itoa(i)] = i
				return v, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	changes.Wait()
	broken := errors.New("broken")
	if err := b.Change(b.Read, func(map[string]int) (map[string]int, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("a change that fails: %v", err)
	}
	if err := b.Change(func() (map[string]int, error) { return nil, broken }, nil); !errors.Is(err, broken) {
		t.Errorf("one that cannot read: %v", err)
	}
	if got, err := b.Read(); err != nil || len(got) != most || got["4"] != 4 {
		t.Errorf("it has %v, %v", got, err)
	}
	dir := filepath.Join(os.Getenv("XDG_STATE_HOME"), "agentenv", "books")
	if info, err := os.Stat(filepath.Join(dir, "b.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its file is %v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "b.json.new")); err == nil {
		t.Error("the temporary file is left")
	}
	b.MaxSize = 10
	if _, err := b.Read(); !errors.Is(err, primitives.ErrLimit) {
		t.Errorf("one that is too large: %v", err)
	}
}
