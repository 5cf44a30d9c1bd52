package beneath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// root makes a tree for walks.
func root(t testing.TB) (Root, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	must(t, os.MkdirAll(dir+"/a/b/c", 0o755))
	must(t, os.MkdirAll(dir+"-evil", 0o755))
	must(t, os.WriteFile(dir+"/file", nil, 0o644))
	for link, target := range map[string]string{
		"l": "a/b", "a/up": "..", "a/out": "../..", "abs": dir + "/a", "evil": dir + "-evil", "loop": "loop", "a/b/top": "../../a/b/c",
		"empty-ish": "./.", "tofile": "file", "dangling": "x/y", "self": dir, "slash": dir + "/", "a/b/here": ".",
	} {
		must(t, os.Symlink(target, dir+"/"+link))
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return Root{FD: fd, Names: []string{dir}}, dir
}

func TestLocateFindsTheRealPath(t *testing.T) {
	r, _ := root(t)
	for _, c := range []struct {
		in, want string
		err      error
	}{
		{"", ".", nil},
		{".", ".", nil},
		{"a/b/c", "a/b/c", nil},
		{"a//b/./c/", "a/b/c", nil},
		{"a/b/../b", "a/b", nil},
		{"l", "a/b", nil},
		{"l/..", "a", nil},
		{"l/top", "a/b/c", nil},
		{"a/up/a/up", ".", nil},
		{"abs/b", "a/b", nil},
		{"self/self/slash/a", "a", nil},
		{"empty-ish/a", "a", nil},
		{"..", "", primitives.ErrPathEscape},
		{"a/../..", "", primitives.ErrPathEscape},
		{"a/out", "", primitives.ErrPathEscape},
		{"a/up/..", "", primitives.ErrPathEscape},
		{"evil", "", primitives.ErrPathEscape},
		{"file", "", unix.ENOTDIR},
		{"tofile", "", unix.ENOTDIR},
		{"file/x", "", unix.ENOTDIR},
		{"dangling", "", unix.ENOENT},
		{"nothing", "", unix.ENOENT},
		{"nothing/..", "", unix.ENOENT},
		{"nothing/../..", "", primitives.ErrPathEscape},
		{"a/b/nothing/../../../l/../..", "", unix.ENOENT},
		{"dangling/../../..", "", primitives.ErrPathEscape},
		{"loop", "", unix.ELOOP},
		{strings.Repeat("a/up/", 41), "", unix.ELOOP},
		{strings.Repeat("a/", 3000), "", unix.ENAMETOOLONG},
	} {
		fd, got, err := r.Locate(c.in, Options{})
		if err == nil {
			unix.Close(fd)
		}
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%.40q: %q, %v, want %q, %v", c.in, got, err, c.want, c.err)
		}
	}
}

func TestMkdirMakesWhatIsMissingAndNothingOutside(t *testing.T) {
	r, dir := root(t)
	mk := Options{Mkdir: func(dir int, name string) error { return unix.Mkdirat(dir, name, 0o755) }}
	for in, made := range map[string]string{"n/e/w": "n/e/w", "l/new": "a/b/new", "dangling/z": "x/y/z"} {
		fd, err := r.OpenDir(in, mk)
		must(t, err)
		unix.Close(fd)
		if _, err := os.Stat(dir + "/" + made); err != nil {
			t.Error(err)
		}
	}
	for _, in := range []string{"evil/new", "a/out/new", "../new"} {
		if _, err := r.OpenDir(in, mk); !errors.Is(err, primitives.ErrPathEscape) {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestNoLinksRefusesEvenHarmlessOnes(t *testing.T) {
	r, _ := root(t)
	for _, in := range []string{"l", "l/c", "abs", "self/a"} {
		if _, err := r.OpenDir(in, Options{NoLinks: true}); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s: %v", in, err)
		}
	}
	fd, err := r.OpenDir("a/b", Options{NoLinks: true, List: true})
	must(t, err)
	defer unix.Close(fd)
	if n, err := unix.ReadDirent(fd, make([]byte, 4096)); err != nil || n == 0 {
		t.Errorf("cannot be listed: %d %v", n, err)
	}
}

// Locate never lets the kernel resolve the whole path, so this is the walk of sandboxes without openat2.
func TestAWalkOpensItsLastDirectoryForListing(t *testing.T) {
	r, _ := root(t)
	for _, in := range []string{"", ".", "a", "a/b/", "a/b/.", "a/..", "a/b/..", "l", "l/..", "abs/b", "a/up", "slash", "a/b/here", "a/b/here/here"} {
		fd, _, err := r.Locate(in, Options{List: true})
		must(t, err)
		if n, err := unix.ReadDirent(fd, make([]byte, 4096)); err != nil || n == 0 {
			t.Errorf("%q cannot be listed: %d %v", in, n, err)
		}
		unix.Close(fd)
	}
}

// The kernel's walk, where available, and our own find the same directory.
func FuzzBothWalksAgree(f *testing.F) {
	for _, s := range []string{"a/b", "l/top/../..", "a/up/l", "abs", "a/out", "file/..", "loop", "", "a/b/c/../../../a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, rel string) {
		if strings.HasPrefix(rel, "/") || strings.IndexByte(rel, 0) >= 0 {
			return
		}
		r, _ := root(t)
		fast, err := openFast(r.FD, rel, Options{})
		if err != nil {
			return
		}
		defer unix.Close(fast)
		slow, _, err := r.Locate(rel, Options{})
		must(t, err)
		defer unix.Close(slow)
		var a, b unix.Stat_t
		must(t, unix.Fstat(fast, &a))
		must(t, unix.Fstat(slow, &b))
		if a.Ino != b.Ino {
			t.Errorf("%q: the kernel came to %d, the walk to %d", rel, a.Ino, b.Ino)
		}
	})
}
