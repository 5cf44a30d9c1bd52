package workspace

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/archive"
)

// stateOf stores a state of files with these contents.
func stateOf(t *testing.T, blobs Blobs, files map[string]string) *Snapshot {
	t.Helper()
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	st, _, err := Read(t.Context(), &packed, blobs, archive.Limit{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := load(t.Context(), blobs, st.Root)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// changesOf returns the changes between two states.
func changesOf(t *testing.T, old, current *Snapshot) []Change {
	t.Helper()
	changes, err := Compare(t.Context(), old.blobs, old.root, current.root, nil)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

// temporary returns blobs for one test.
func temporary(t *testing.T) *Temporary {
	t.Helper()
	blobs := NewTemporary(nil)
	t.Cleanup(func() {
		if err := blobs.Close(); err != nil {
			t.Error(err)
		}
	})
	return blobs
}

func TestApplyIsAllOrNothing(t *testing.T) {
	blobs := temporary(t)
	old := stateOf(t, blobs, map[string]string{"a": "1\n", "z/b": "1\n"})
	current := stateOf(t, blobs, map[string]string{"a": "2\n", "y/x/new": "1\n", "z/b": "2\n"})
	dir := t.TempDir()
	put := func(name, content string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "1\n")
	put("z/b", "1\n")
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	// A program may save a file between the check and the commit.
	c := &treeChange{root: root, old: old, current: current, changes: changesOf(t, old, current)}
	c.staging = func() { put("z/b", "mine\n") }
	if err := c.make(t.Context()); !errors.Is(err, ErrConflict) {
		t.Errorf("applied: %v", err)
	}
	var left []string
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		left = append(left, strings.TrimPrefix(name, dir+"/")+" "+string(content))
		return err
	})
	if got := strings.Join(left, ""); err != nil || got != "a 1\nz/b mine\n" {
		t.Errorf("the folder holds %q, %v", got, err)
	}
}

func TestAnUndoneApplyBringsEmptyFoldersBack(t *testing.T) {
	blobs := temporary(t)
	old := stateOf(t, blobs, map[string]string{"a": "1\n"})
	current := stateOf(t, blobs, map[string]string{"a": "1\n", "d": "new\n", "z": "new\n"})
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a"), []byte("1\n"), 0o644), os.MkdirAll(filepath.Join(dir, "d/x/y"), 0o755)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	c := &treeChange{root: root, old: old, current: current, changes: changesOf(t, old, current)}
	c.staging = func() {
		if err := os.WriteFile(filepath.Join(dir, "z"), []byte("mine\n"), 0o644); err != nil {
			t.Error(err)
		}
	}
	if err := c.make(t.Context()); !errors.Is(err, ErrConflict) {
		t.Errorf("applied: %v", err)
	}
	var left []string
	err = filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		left = append(left, strings.TrimPrefix(name, dir))
		return err
	})
	if got := strings.Join(left, " "); err != nil || got != " /a /d /d/x /d/x/y /z" {
		t.Errorf("the folder holds %q, %v", got, err)
	}
}

// FuzzSnapshot checks that any archive either is an error or names only files below the
// workspace.
func FuzzSnapshot(f *testing.F) {
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeReg, Name: "a/b", Size: 1, Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "../b", Size: 1},
		{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc/passwd"},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			f.Fatal(err)
		}
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		blobs := NewTemporary(nil)
		defer func() {
			if err := blobs.Close(); err != nil {
				t.Error(err)
			}
		}()
		st, _, err := Read(t.Context(), bytes.NewReader(data), blobs, archive.Limit{})
		if err != nil {
			return
		}
		s, err := load(t.Context(), blobs, st.Root)
		if err != nil {
			t.Fatal(err)
		}
		for name := range s.files {
			if name == ".." || strings.HasPrefix(name, "../") || strings.HasPrefix(name, "/") {
				t.Errorf("a file %q", name)
			}
		}
	})
}
