package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestMoveRenamesAndReplacesFilesOnly(t *testing.T) {
	for _, c := range []struct {
		rule, from, to string
		want           error
		left           []string
	}{
		{"to a new name", "file", "new", nil, []string{"dir", "dir/in", "empty", "file2", "link", "new"}},
		{"replacing a file", "file", "file2", nil, []string{"dir", "dir/in", "empty", "file2", "link"}},
		{"making parents", "file", "x/y/z", nil, []string{"dir", "dir/in", "empty", "file2", "link", "x", "x/y", "x/y/z"}},
		{"a directory", "dir", "moved", nil, []string{"empty", "file", "file2", "link", "moved", "moved/in"}},
		{"a link itself", "link", "link2", nil, []string{"dir", "dir/in", "empty", "file", "file2", "link2"}},
		{"onto itself", "file", "./file", nil, nil},
		{"a file onto a directory", "file", "empty", primitives.ErrIsDirectory, nil},
		{"a directory onto an empty one", "dir", "empty", primitives.ErrIsDirectory, nil},
		{"a directory onto a file", "dir", "file", primitives.ErrNotDirectory, nil},
		{"a directory into itself", "dir", "dir/a/b", fs.ErrInvalid, nil},
		{"what is missing", "nothing", "x/y", fs.ErrNotExist, nil},
		{"below a file", "file2", "file/x", primitives.ErrNotDirectory, nil},
		{"out", "file", "../x", primitives.ErrPathEscape, nil},
		{"in from outside", "../home", "x", primitives.ErrPathEscape, nil},
		{"the workspace", ".", "x", fs.ErrInvalid, nil},
		{"to nowhere", "file", "", fs.ErrInvalid, nil},
	} {
		t.Run(c.rule, func(t *testing.T) {
			f, paths := open(t)
			put(t, paths.Workspace+"/file", "file")
			put(t, paths.Workspace+"/file2", "file2")
			put(t, paths.Workspace+"/dir/in", "")
			must(t, os.Mkdir(paths.Workspace+"/empty", 0o755))
			must(t, os.Symlink("nowhere", paths.Workspace+"/link"))
			if err := f.Move(t.Context(), c.from, c.to); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if c.left == nil {
				c.left = []string{"dir", "dir/in", "empty", "file", "file2", "link"}
			}
			if got := paths1(t, f, primitives.ListOptions{Depth: -1}); !slices.Equal(got, c.left) {
				t.Errorf("left %v, want %v", got, c.left)
			}
		})
	}
}

// paths1 returns the paths in the workspace.
func paths1(t *testing.T, f *FS, opts primitives.ListOptions) []string {
	t.Helper()
	infos, err := f.List(t.Context(), ".", opts)
	must(t, err)
	got := []string{}
	for _, i := range infos {
		got = append(got, i.Path)
	}
	return got
}

func TestMoveOfOneFileOntoItsOtherNameLeavesOne(t *testing.T) {
	f, paths := open(t)
	put(t, paths.Workspace+"/a", "x")
	must(t, os.Link(paths.Workspace+"/a", paths.Workspace+"/b"))
	must(t, f.Move(t.Context(), "a", "b"))
	if got := entries(t, paths.Workspace); !slices.Equal(got, []string{"b"}) {
		t.Errorf("left %q", got)
	}
}

// onAnotherFileSystem returns a folder that is not on the file system of dir.
func onAnotherFileSystem(t *testing.T, dir string) string {
	t.Helper()
	stat := func(name string) (st unix.Stat_t) {
		must(t, unix.Stat(name, &st))
		return st
	}
	parent := "/dev/shm"
	if stat(parent).Dev == stat(dir).Dev {
		parent = "/tmp"
	}
	other, err := os.MkdirTemp(parent, "agentenv") //nolint:usetesting // TempDir is where dir is
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(other)) })
	if stat(other).Dev == stat(dir).Dev {
		t.Fatalf("%s and %s are on one file system", other, dir)
	}
	return other
}

func TestMoveBetweenFileSystemsCopies(t *testing.T) {
	f, paths := open(t)
	other := onAnotherFileSystem(t, paths.Workspace)
	put(t, other+"/file", strings.Repeat("x", 1<<20))
	must(t, os.Chmod(other+"/file", 0o750))
	must(t, os.Symlink("target", other+"/link"))
	must(t, os.Mkdir(other+"/dir", 0o755))
	must(t, f.Move(t.Context(), other+"/file", "file"))
	must(t, f.Move(t.Context(), other+"/link", "link"))
	if info, err := f.Stat(t.Context(), "file"); err != nil || info.Size != 1<<20 || info.Mode != 0o750 {
		t.Errorf("%+v %v", info, err)
	}
	if info, err := f.Stat(t.Context(), "link"); err != nil || info.Target != "target" {
		t.Errorf("%+v %v", info, err)
	}
	if err := f.Move(t.Context(), other+"/dir", "dir"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("directory: %v", err)
	}
	if got := entries(t, other); !slices.Equal(got, []string{"dir"}) {
		t.Errorf("left %q", got)
	}
	if got := entries(t, paths.Workspace); !slices.Equal(got, []string{"file", "link"}) {
		t.Errorf("moved %q", got)
	}
}

func TestRemoveTakesLinksAndNotTheirTargets(t *testing.T) {
	f, paths := open(t)
	outside := t.TempDir()
	put(t, outside+"/keep", "x")
	must(t, os.Symlink(outside, paths.Workspace+"/link"))
	must(t, os.Mkdir(paths.Workspace+"/tree", 0o755))
	must(t, os.Symlink(outside, paths.Workspace+"/tree/link"))
	must(t, f.Remove(t.Context(), "link", true))
	must(t, f.Remove(t.Context(), "tree", true))
	must(t, os.Symlink(paths.Workspace, outside+"/alias"))
	must(t, f.Remove(t.Context(), outside+"/alias", false))
	wantFile(t, outside+"/keep", "x")
	if err := f.Remove(t.Context(), outside+"/keep/", false); err != nil {
		t.Error(err)
	}
}

func TestRemoveOfAHugeTreeStopsWithTheContext(t *testing.T) {
	f, paths := open(t)
	for i := range 500 {
		put(t, paths.Workspace+"/tree/"+strconv.Itoa(i)+"/f", "")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Remove(ctx, "tree", true); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	must(t, f.Remove(t.Context(), "tree", true))
	if got := entries(t, paths.Workspace); len(got) != 0 {
		t.Errorf("left %q", got)
	}
}

func TestRemoveTakesTreesOfAnyDepth(t *testing.T) {
	f, paths := open(t)
	put(t, paths.Workspace+"/deep/other/file", "x")
	// Deeper than a path can name: nested step by step.
	fd, err := openPath(paths.Workspace + "/deep")
	must(t, err)
	for range 3000 {
		must(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := openat(fd, "d", dirFlags, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
	must(t, f.Remove(t.Context(), "deep", true))
	if got := entries(t, paths.Workspace); len(got) != 0 {
		t.Errorf("left %q", got)
	}
}

func TestMkdirMakesParentsAndKeepsWhatIsThere(t *testing.T) {
	f, paths := open(t)
	must(t, f.Mkdir(t.Context(), "a/b/c", 0o700))
	must(t, f.Mkdir(t.Context(), "a/b/c/", 0o755))
	must(t, f.Mkdir(t.Context(), ".", 0))
	must(t, f.Mkdir(t.Context(), paths.Home+"/x/y", 0))
	must(t, os.Symlink("a", paths.Workspace+"/link"))
	must(t, f.Mkdir(t.Context(), "link", 0))
	must(t, f.Mkdir(t.Context(), "link/d", 0))
	for name, want := range map[string]fs.FileMode{"a": 0o755, "a/b/c": 0o700, "a/d": 0o755, paths.Home + "/x/y": 0o755} {
		if info, err := f.Stat(t.Context(), name); err != nil || info.Mode != fs.ModeDir|want {
			t.Errorf("%s: %v %v", name, info.Mode, err)
		}
	}
}

func TestNewFilesBelongToTheConfiguredOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("only root can give files away; as another user the owner is the process")
	}
	paths := primitives.PathsIn(filepath.Join(t.TempDir(), "s"))
	must(t, os.MkdirAll(paths.Workspace, 0o755))
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = 4242, 2424
	}
	f, err := New(Config{Backend: "local", Paths: paths, UID: uid, GID: gid})
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	must(t, write(t.Context(), f, "p/q/file", "", primitives.WriteOptions{}))
	must(t, f.Mkdir(t.Context(), "dir", 0))
	must(t, write(t.Context(), f, "log", "", primitives.WriteOptions{Append: true}))
	infos, err := f.List(t.Context(), "", primitives.ListOptions{Depth: -1})
	must(t, err)
	if len(infos) != 5 {
		t.Errorf("%d entries", len(infos))
	}
	for _, info := range infos {
		if info.UID != uid || info.GID != gid {
			t.Errorf("%s belongs to %d:%d", info.Path, info.UID, info.GID)
		}
	}
}

func TestListIsSortedByPathByteByByte(t *testing.T) {
	f, paths := open(t)
	names := []string{"a", "a!", "a.txt", "a/b", "a/b/c", "a/b-", "a-", "b", "\xff", "é", "Z", "a/b.d"}
	for _, n := range names {
		if n == "a" || n == "a/b" {
			must(t, os.MkdirAll(paths.Workspace+"/"+n, 0o755))
		} else {
			put(t, paths.Workspace+"/"+n, "")
		}
	}
	slices.Sort(names)
	if got := paths1(t, f, primitives.ListOptions{Depth: -1}); !slices.Equal(got, names) {
		t.Errorf("got  %q\nwant %q", got, names)
	}
}

func TestListOptions(t *testing.T) {
	f, paths := open(t)
	for _, n := range []string{"a.go", "b.md", "sub/c.go", "sub/deep/d.go", "sub/deep/e.txt"} {
		put(t, paths.Workspace+"/"+n, n)
	}
	must(t, os.Symlink("sub", paths.Workspace+"/link"))
	all := []string{"a.go", "b.md", "link", "sub", "sub/c.go", "sub/deep", "sub/deep/d.go", "sub/deep/e.txt"}
	for _, c := range []struct {
		opts primitives.ListOptions
		want []string
	}{
		{primitives.ListOptions{}, []string{"a.go", "b.md", "link", "sub"}},
		{primitives.ListOptions{Depth: 1}, []string{"a.go", "b.md", "link", "sub"}},
		{primitives.ListOptions{Depth: 2}, []string{"a.go", "b.md", "link", "sub", "sub/c.go", "sub/deep"}},
		{primitives.ListOptions{Depth: -1}, all},
		{primitives.ListOptions{Pattern: "*.go"}, []string{"a.go"}},
		{primitives.ListOptions{Pattern: "**/*.go"}, []string{"a.go", "sub/c.go", "sub/deep/d.go"}},
		{primitives.ListOptions{Pattern: "**/*.go", Depth: 2}, []string{"a.go", "sub/c.go"}},
		{primitives.ListOptions{Pattern: "sub/*"}, []string{"sub/c.go", "sub/deep"}},
		{primitives.ListOptions{Pattern: "*.{md,txt}", Depth: -1}, []string{"b.md"}},
		{primitives.ListOptions{Pattern: "none"}, []string{}},
	} {
		if got := paths1(t, f, c.opts); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.opts, got, c.want)
		}
	}
	infos, err := f.List(t.Context(), "link", primitives.ListOptions{Depth: -1, Limit: 2})
	if !errors.Is(err, primitives.ErrLimit) || len(infos) != 2 || infos[0].Path != "c.go" || infos[0].Size != 8 {
		t.Errorf("limit: %+v %v", infos, err)
	}
	if infos, err := f.List(t.Context(), "link", primitives.ListOptions{Limit: 2}); err != nil || len(infos) != 2 {
		t.Errorf("exactly the limit: %d %v", len(infos), err)
	}
	for _, opts := range []primitives.ListOptions{{Pattern: "[a"}, {Depth: -2}, {Limit: -1}} {
		if _, err := f.List(t.Context(), "", opts); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

func TestListOfTenThousandFilesIsComplete(t *testing.T) {
	f, paths := open(t)
	const n = 10_000
	for i := range n {
		must(t, os.WriteFile(fmt.Sprintf("%s/f%05d", paths.Workspace, i), nil, 0o644))
	}
	got := paths1(t, f, primitives.ListOptions{})
	if len(got) != n || !slices.IsSorted(got) {
		t.Errorf("%d entries, sorted: %v", len(got), slices.IsSorted(got))
	}
}

func TestResolveReturnsTheRealDirectory(t *testing.T) {
	f, paths := open(t)
	ws := paths.Workspace
	must(t, os.MkdirAll(ws+"/a/b", 0o755))
	must(t, os.Symlink("a/b", ws+"/link"))
	must(t, os.Symlink(ws+"/a", ws+"/abs"))
	must(t, os.Symlink("..", ws+"/a/b/up"))
	for in, want := range map[string]string{
		"": ws, ".": ws, "a/..": ws, "a/b": ws + "/a/b", "link": ws + "/a/b", "abs/b": ws + "/a/b",
		"link/up": ws + "/a", "link/..": ws + "/a", "/": "/", ws + "/a/": ws + "/a", ws + "/link/..": ws + "/a",
	} {
		if got, err := f.Resolve(in); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
}
