package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
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

func TestAFileIsReplacedWhole(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	root, err := Open("replaced")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, content := range []string{"the first, longer one", "the second"} {
		if err := Replace(root, "f", []byte(content)); err != nil {
			t.Fatal(err)
		}
		got, err := root.ReadFile("f")
		info, serr := root.Stat("f")
		if err != nil || serr != nil || string(got) != content || info.Mode().Perm() != 0o600 {
			t.Errorf("it has %q, %v, %v", got, err, serr)
		}
	}
	if _, err := root.Stat("f.new"); err == nil {
		t.Error("the temporary file is left")
	}
}
