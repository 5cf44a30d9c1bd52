package treecopy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree makes a folder with an entry of every kind.
func tree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "from")
	must(t, os.MkdirAll(filepath.Join(dir, "a", "closed"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a", "file"), []byte("content"), 0o640))
	must(t, os.Chmod(filepath.Join(dir, "a", "file"), 0o4750))
	must(t, os.Link(filepath.Join(dir, "a", "file"), filepath.Join(dir, "twin")))
	must(t, os.Symlink("a/file", filepath.Join(dir, "link")))
	must(t, os.Symlink(dir+"/a", filepath.Join(dir, "absolute")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o620))
	must(t, unix.Mknod(filepath.Join(dir, "socket"), unix.S_IFSOCK|0o600, 0))
	must(t, os.WriteFile(filepath.Join(dir, "a", "closed", "f"), nil, 0o400))
	must(t, os.Chmod(filepath.Join(dir, "a", "closed"), 0o555))
	old := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	must(t, os.Chtimes(filepath.Join(dir, "a", "file"), old, old))
	must(t, os.Chtimes(filepath.Join(dir, "a"), old, old))
	return dir
}

func TestACopyHasWhatTheOriginalHas(t *testing.T) {
	from := tree(t)
	to := filepath.Join(t.TempDir(), "to")
	link := func(target string) string { return strings.Replace(target, from, to, 1) }
	must(t, Copy(t.Context(), from, to, Options{Link: link, Skip: func(rel string) bool { return rel == "a/not" }}))
	for _, name := range []string{".", "a", "a/file", "a/closed", "a/closed/f", "twin", "link", "fifo"} {
		was, err := os.Lstat(filepath.Join(from, name))
		must(t, err)
		is, err := os.Lstat(filepath.Join(to, name))
		must(t, err)
		if was.Mode() != is.Mode() || !was.ModTime().Equal(is.ModTime()) || was.Mode().IsRegular() && was.Size() != is.Size() {
			t.Errorf("%s: %v %v %d became %v %v %d", name, was.Mode(), was.ModTime(), was.Size(), is.Mode(), is.ModTime(), is.Size())
		}
	}
	if b, err := os.ReadFile(filepath.Join(to, "link")); string(b) != "content" || err != nil {
		t.Errorf("through the link: %q, %v", b, err)
	}
	if target, err := os.Readlink(filepath.Join(to, "absolute")); target != filepath.Join(to, "a") || err != nil {
		t.Errorf("the absolute link leads to %q, %v", target, err)
	}
	one, err := os.Stat(filepath.Join(to, "twin"))
	must(t, err)
	other, err := os.Stat(filepath.Join(to, "a", "file"))
	must(t, err)
	original, err := os.Stat(filepath.Join(from, "twin"))
	must(t, err)
	if !os.SameFile(one, other) || os.SameFile(one, original) {
		t.Error("the hard link is another file, or the original's")
	}
	if _, err := os.Lstat(filepath.Join(to, "socket")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
}

func TestHolesStayHoles(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join(dir, "from")
	must(t, os.Mkdir(from, 0o755))
	f, err := os.Create(filepath.Join(from, "f"))
	must(t, err)
	const size = 64 << 20
	for _, at := range []int64{0, 30 << 20, size - 5} {
		_, err = f.WriteAt([]byte("data!"), at)
		must(t, err)
	}
	must(t, f.Truncate(size+1000))
	must(t, f.Close())
	must(t, Copy(t.Context(), from, filepath.Join(dir, "to"), Options{}))
	var was, is syscall.Stat_t
	must(t, syscall.Stat(filepath.Join(from, "f"), &was))
	must(t, syscall.Stat(filepath.Join(dir, "to", "f"), &is))
	if is.Size != was.Size || is.Blocks > was.Blocks+64 {
		t.Errorf("size %d and %d blocks became %d and %d", was.Size, was.Blocks, is.Size, is.Blocks)
	}
	copied, err := os.Open(filepath.Join(dir, "to", "f"))
	must(t, err)
	defer copied.Close()
	for _, at := range []int64{0, 30 << 20, size - 5} {
		b := make([]byte, 5)
		if _, err := copied.ReadAt(b, at); string(b) != "data!" || err != nil {
			t.Errorf("at %d: %q, %v", at, b, err)
		}
	}
}

func TestALinkInTheWayLeadsNowhere(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	must(t, os.Mkdir(secret, 0o700))
	must(t, os.WriteFile(filepath.Join(secret, "key"), []byte("x"), 0o600))
	must(t, os.Symlink(secret, filepath.Join(dir, "from")))
	if err := Copy(t.Context(), filepath.Join(dir, "from"), filepath.Join(dir, "to"), Options{}); !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a link as the folder: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "to")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
}

func TestCopyStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Copy(ctx, tree(t), filepath.Join(t.TempDir(), "to"), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Copy: %v", err)
	}
}
