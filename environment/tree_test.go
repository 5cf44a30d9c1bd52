package environment

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree is files by path: "-> target" is a link, "x:" before the content an
// executable file.
type tree map[string]string

func (tr tree) write(t *testing.T, dir string) {
	t.Helper()
	for name, content := range tr {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, full)
		} else if script, ok := strings.CutPrefix(content, "x:"); ok {
			err = os.WriteFile(full, []byte(script), 0o755)
		} else {
			err = os.WriteFile(full, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// readTree reads what write writes, without what is in .git.
func readTree(t *testing.T, dir string) tree {
	t.Helper()
	tr := make(tree)
	err := filepath.WalkDir(dir, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".git" && d.IsDir() {
			return fs.SkipDir
		}
		name, _ := filepath.Rel(dir, full)
		switch {
		case d.IsDir():
			return nil
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(full)
			tr[name] = "-> " + target
			return err
		}
		content, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if tr[name] = string(content); err == nil && info.Mode()&0o100 != 0 {
			tr[name] = "x:" + tr[name]
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func (tr tree) mustBe(t *testing.T, want tree) {
	t.Helper()
	for name, content := range want {
		if got, ok := tr[name]; !ok {
			t.Errorf("%q is missing", name)
		} else if got != content {
			t.Errorf("%q holds %s, want %s", name, short(got), short(content))
		}
	}
	for name := range tr {
		if _, ok := want[name]; !ok {
			t.Errorf("%q should not be there", name)
		}
	}
}

func short(s string) string { return fmt.Sprintf("%d bytes %.80q", len(s), s) }

// replaceInPlace writes files that exist.
func (tr tree) replaceInPlace(t *testing.T, dir string) {
	t.Helper()
	for name, content := range tr {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
