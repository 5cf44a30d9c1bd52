package output_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/output"
	"github.com/agentenv-dev/agentenv/primitives"
)

// No Open may block: a test that hangs has failed.
func TestOnlyRegularFilesAreWritten(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("victim"), []byte("kept"), 0o644), os.Symlink("victim", at("link")), os.Symlink("new", at("dangling")),
		syscall.Mkfifo(at("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		at("link"): primitives.ErrNotRegular, at("dangling"): primitives.ErrNotRegular, at("pipe"): primitives.ErrNotRegular,
		"/dev/null": primitives.ErrNotRegular, dir: primitives.ErrIsDirectory, at("none/f"): fs.ErrNotExist,
	} {
		for _, flag := range []int{os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_APPEND} {
			f, err := output.Open(name, flag)
			var where *fs.PathError
			if !errors.Is(err, want) || !errors.As(err, &where) || f != nil {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
	}
	if data, err := os.ReadFile(at("victim")); err != nil || string(data) != "kept" {
		t.Errorf("%q %v", data, err)
	}
	if _, err := os.Lstat(at("new")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestWhatIsWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	for _, c := range []struct {
		flag int
		text string
		want string
	}{{os.O_WRONLY, "long", "long"}, {os.O_WRONLY | os.O_APPEND, "er", "longer"}, {os.O_WRONLY | os.O_TRUNC, "x", "x"}} {
		f, err := output.Open(name, c.flag)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(c.text); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
		if data, err := os.ReadFile(name); err != nil || string(data) != c.want {
			t.Errorf("%q %v, want %q", data, err, c.want)
		}
	}
}
