package guest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestIdentifyTellsWhichFilesAreThere(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink("file", link)); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, newFake(t), Config{})
	got, err := c.Identify(t.Context(), []string{file, link, "/proc/sys"})
	if err != nil {
		t.Fatal(err)
	}
	want := FileIdentity{Dev: st.Dev, Ino: st.Ino}
	if got.Kernel != strings.TrimSpace(string(kernel)) || got.Files[0] != want || got.Files[1] != want || got.Files[2].Dev == want.Dev {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := c.Identify(t.Context(), []string{filepath.Join(dir, "none")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}
