package files

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	fileEntry = tar.TypeReg
	dirEntry  = tar.TypeDir
	linkEntry = tar.TypeSymlink
	hardEntry = tar.TypeLink
)

var when = time.Date(2020, 2, 3, 4, 5, 6, 789, time.UTC) // Go has no constant structs

type tarEntry struct {
	tar.Header
	content string
}

// entryOf returns an entry. what is its content or, for a link, its target.
func entryOf(name string, kind byte, what string, mode int64) tarEntry {
	e := tarEntry{Header: tar.Header{Name: name, Typeflag: kind, Mode: mode, ModTime: when, Format: tar.FormatPAX}}
	switch kind {
	case linkEntry, hardEntry:
		e.Linkname = what
	default:
		e.content, e.Size = what, int64(len(what))
	}
	return e
}

func archive(t testing.TB, list ...tarEntry) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := range list {
		must(t, w.WriteHeader(&list[i].Header))
		_, err := w.Write([]byte(list[i].content))
		must(t, err)
	}
	must(t, w.Close())
	return &buf
}

func readAll(r io.ReadCloser) ([]byte, error) {
	defer r.Close()
	return io.ReadAll(r)
}

func TestPackAndUnpackGiveTheSameTree(t *testing.T) {
	f, paths := open(t)
	src := paths.Workspace + "/src"
	long := strings.Repeat("long/", 60) + strings.Repeat("n", 255)
	for name, content := range map[string]string{
		"plain": "text", "empty": "", "sub/deep/file": "deep", "\xfe\xff": "odd name", "new\nline": "", long: "long",
		"big": strings.Repeat("0123456789abcdef", 40_000), "ignored/x": "", "sub/x.log": "",
	} {
		put(t, src+"/"+name, content)
	}
	must(t, os.Mkdir(src+"/emptydir", 0o700))
	must(t, os.Symlink("sub/deep", src+"/link"))
	must(t, os.Symlink("../nowhere", src+"/sub/dangling"))
	must(t, os.Chmod(src+"/plain", 0o754))
	must(t, os.Chtimes(src+"/plain", when, when))
	must(t, os.Chtimes(src+"/emptydir", when, when))
	must(t, syscall.Mkfifo(src+"/fifo", 0o644))
	r, err := f.Pack(t.Context(), "src", primitives.PackOptions{Ignore: []string{"ignored", "*.log"}})
	must(t, err)
	must(t, f.Unpack(t.Context(), "new/dst", r))
	must(t, r.Close())
	must(t, r.Close())

	must(t, os.RemoveAll(src+"/ignored"))
	must(t, os.Remove(src+"/sub/x.log"))
	must(t, os.Remove(src+"/fifo"))
	want, err := f.List(t.Context(), "src", primitives.ListOptions{Depth: -1})
	must(t, err)
	got, err := f.List(t.Context(), "new/dst", primitives.ListOptions{Depth: -1})
	must(t, err)
	if len(got) != len(want) {
		t.Fatalf("%d entries, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		// Removing the log has changed the time of its folder.
		if g.Path != w.Path || g.Mode != w.Mode || g.Size != w.Size || g.Target != w.Target ||
			!w.IsDir() && !g.ModTime.Equal(w.ModTime) {
			t.Errorf("got %+v\nwant %+v", g, w)
		}
		if w.Mode.IsRegular() {
			content, err := os.ReadFile(src + "/" + w.Path)
			must(t, err)
			wantFile(t, paths.Workspace+"/new/dst/"+w.Path, string(content))
		}
		if w.Path == "emptydir" && !g.ModTime.Equal(when) {
			t.Errorf("time of a directory: %v", g.ModTime)
		}
	}
}

func TestPackIsSortedAndNamesNoOwner(t *testing.T) {
	f, paths := open(t)
	for _, n := range []string{"b", "a/x", "a.txt"} {
		put(t, paths.Workspace+"/"+n, "")
	}
	r, err := f.Pack(t.Context(), "", primitives.PackOptions{})
	must(t, err)
	defer r.Close()
	tr := tar.NewReader(r)
	var names []string
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		names = append(names, h.Name)
		if h.Uname != "" || h.Gname != "" || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s has an owner", h.Name)
		}
	}
	if want := []string{"a/", "a.txt", "a/x", "b"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

func TestPackFailuresAreTheReaders(t *testing.T) {
	f, paths := open(t)
	put(t, paths.Workspace+"/big", strings.Repeat("x", 1<<20))
	start := func(ctx context.Context) io.ReadCloser {
		r, err := f.Pack(ctx, "", primitives.PackOptions{})
		must(t, err)
		_, err = io.ReadFull(r, make([]byte, 1000))
		must(t, err)
		return r
	}
	r := start(t.Context())
	must(t, os.Truncate(paths.Workspace+"/big", 10))
	if _, err := readAll(r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("file became shorter: %v", err)
	}
	put(t, paths.Workspace+"/big", strings.Repeat("x", 1<<20))
	ctx, cancel := context.WithCancel(t.Context())
	r = start(ctx)
	cancel()
	if _, err := readAll(r); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	r = start(t.Context())
	must(t, r.Close())
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := f.Pack(t.Context(), "nothing", primitives.PackOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := f.Pack(t.Context(), "", primitives.PackOptions{Ignore: []string{"["}}); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("pattern: %v", err)
	}
}

func TestUnpackNeverLeavesItsDirectory(t *testing.T) {
	outside := t.TempDir()
	put(t, outside+"/victim", "old")
	for _, c := range []struct {
		rule string
		list []tarEntry
		want error
	}{
		{"absolute name", []tarEntry{entryOf(outside+"/new", fileEntry, "x", 0o644)}, primitives.ErrPathEscape},
		{"dotdot", []tarEntry{entryOf("../new", fileEntry, "x", 0o644)}, primitives.ErrPathEscape},
		{"dotdot that stays inside", []tarEntry{entryOf("a/../new", fileEntry, "x", 0o644)}, primitives.ErrPathEscape},
		{"below an absolute link", []tarEntry{entryOf("l", linkEntry, outside, 0), entryOf("l/new", fileEntry, "x", 0o644)}, primitives.ErrPathEscape},
		{"below a link that leads out", []tarEntry{entryOf("a/l", linkEntry, "../..", 0), entryOf("a/l/x", fileEntry, "x", 0o644)}, primitives.ErrPathEscape},
		{
			"below a link through a link that comes later",
			[]tarEntry{entryOf("a", linkEntry, "b/..", 0), entryOf("b", linkEntry, ".", 0), entryOf("a/x", fileEntry, "x", 0o644)},
			primitives.ErrPathEscape,
		},
		{
			"below a link through a link that came before",
			[]tarEntry{entryOf("d/e/", dirEntry, "", 0o755), entryOf("up", linkEntry, "d/e", 0), entryOf("l", linkEntry, "up/../../..", 0), entryOf("l/x", fileEntry, "x", 0o644)},
			primitives.ErrPathEscape,
		},
		{
			"below a link counted from where its directory really is",
			[]tarEntry{entryOf("d/e/", dirEntry, "", 0o755), entryOf("d/e/top", linkEntry, "../..", 0), entryOf("d/e/top/l", linkEntry, "..", 0), entryOf("l/x", fileEntry, "x", 0o644)},
			primitives.ErrPathEscape,
		},
		{"directory in place of a link of the archive", []tarEntry{entryOf("l", linkEntry, outside, 0), entryOf("l/", dirEntry, "", 0o700)}, primitives.ErrPathEscape},
		{"hard link through a link of the archive", []tarEntry{entryOf("l", linkEntry, outside, 0), entryOf("h", hardEntry, "l/victim", 0o644)}, primitives.ErrPathEscape},
		{"a link without a target", []tarEntry{entryOf("l", linkEntry, "", 0)}, fs.ErrInvalid},
		{"links that lead out", []tarEntry{entryOf("a", linkEntry, outside+"/victim", 0), entryOf("b", linkEntry, "../../x", 0), entryOf("a", fileEntry, "x", 0o644)}, nil},
		{"below a link that was there", []tarEntry{entryOf("out/new", fileEntry, "x", 0o644)}, primitives.ErrPathEscape},
		{"directory below a link that was there", []tarEntry{entryOf("out/new/", dirEntry, "", 0o755)}, primitives.ErrPathEscape},
		{"directory in place of a link that was there", []tarEntry{entryOf("out/", dirEntry, "", 0o700)}, primitives.ErrPathEscape},
		{"hard link to the outside", []tarEntry{entryOf("h", hardEntry, "../../victim", 0o644)}, primitives.ErrPathEscape},
		{"hard link by absolute path", []tarEntry{entryOf("h", hardEntry, outside+"/victim", 0o644)}, primitives.ErrPathEscape},
		{"hard link through a link", []tarEntry{entryOf("h", hardEntry, "out/victim", 0o644)}, primitives.ErrPathEscape},
		{"file in place of a link", []tarEntry{entryOf("victim", fileEntry, "x", 0o644)}, nil},
		{"device", []tarEntry{entryOf("dev", tar.TypeChar, "", 0o644)}, primitives.ErrNotRegular},
		{"fifo", []tarEntry{entryOf("fifo", tar.TypeFifo, "", 0o644)}, primitives.ErrNotRegular},
		{"file as the directory itself", []tarEntry{entryOf(".", fileEntry, "", 0o644)}, primitives.ErrIsDirectory},
		{"link in place of a directory", []tarEntry{entryOf("d/", dirEntry, "", 0o755), entryOf("d", linkEntry, ".", 0)}, primitives.ErrIsDirectory},
		{"file in place of a directory", []tarEntry{entryOf("d/", dirEntry, "", 0o755), entryOf("d", fileEntry, ".", 0)}, primitives.ErrIsDirectory},
		{"file below a file", []tarEntry{entryOf("f", fileEntry, "", 0o644), entryOf("f/g", fileEntry, ".", 0)}, primitives.ErrNotDirectory},
	} {
		t.Run(c.rule, func(t *testing.T) {
			f, paths := open(t)
			dst := paths.Workspace + "/dst"
			must(t, os.Mkdir(dst, 0o755))
			must(t, os.Symlink(outside, dst+"/out"))
			must(t, os.Symlink(outside+"/victim", dst+"/victim"))
			if err := f.Unpack(t.Context(), "dst", archive(t, c.list...)); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if got := entries(t, outside); !slices.Equal(got, []string{"victim"}) {
				t.Errorf("outside: %q", got)
			}
			wantFile(t, outside+"/victim", "old")
			if got := entries(t, paths.Workspace); !slices.Equal(got, []string{"dst"}) {
				t.Errorf("beside: %q", got)
			}
			if info, err := os.Stat(outside); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("the mode of the outside was changed: %v %v", info.Mode(), err)
			}
		})
	}
}

func TestUnpackKeepsPermissionsAndNothingMore(t *testing.T) {
	f, paths := open(t)
	put(t, paths.Workspace+"/old", "old")
	must(t, os.Link(paths.Workspace+"/old", paths.Workspace+"/other"))
	must(t, f.Unpack(t.Context(), "", archive(t,
		entryOf("./", dirEntry, "", 0o700),
		entryOf("suid", fileEntry, "x", 0o7755),
		entryOf("sticky/", dirEntry, "", 0o1777),
		entryOf("none", fileEntry, "x", 0),
		entryOf("old", fileEntry, "new", 0o644),
		entryOf("implied/parent", fileEntry, "x", 0o644),
		entryOf("inner/", dirEntry, "", 0o755),
		entryOf("inner/link", linkEntry, "../suid", 0),
		entryOf("copy", hardEntry, "suid", 0o600),
	)))
	for name, want := range map[string]fs.FileMode{
		"suid": 0o755, "sticky": fs.ModeDir | 0o777, "none": 0, "implied": fs.ModeDir | 0o755, "copy": 0o600, ".": fs.ModeDir | 0o755,
	} {
		if info, err := f.Stat(t.Context(), name); err != nil || info.Mode != want {
			t.Errorf("%s: %v %v", name, info.Mode, err)
		}
	}
	wantFile(t, paths.Workspace+"/other", "old")
	must(t, os.WriteFile(paths.Workspace+"/copy", []byte("changed"), 0o644))
	wantFile(t, paths.Workspace+"/inner/link", "x")
}

func TestUnpackReportsABrokenArchive(t *testing.T) {
	f, paths := open(t)
	whole, err := io.ReadAll(archive(t, entryOf("first", fileEntry, "1", 0o644), entryOf("second", fileEntry, strings.Repeat("2", 5000), 0o644)))
	must(t, err)
	if err := f.Unpack(t.Context(), "cut", bytes.NewReader(whole[:4000])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
	if got := entries(t, paths.Workspace+"/cut"); !slices.Equal(got, []string{"first"}) {
		t.Errorf("left %q", got)
	}
	if err := f.Unpack(t.Context(), "bad", strings.NewReader(strings.Repeat("garbage ", 1000))); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("garbage: %v", err)
	}
	must(t, f.Unpack(t.Context(), "none", strings.NewReader("")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Unpack(ctx, "x", bytes.NewReader(whole)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	seed := func(list ...tarEntry) {
		b, err := io.ReadAll(archive(f, list...))
		must(f, err)
		f.Add(b)
	}
	seed(entryOf("a/b", fileEntry, "x", 0o644))
	seed(entryOf("l", linkEntry, "out/..", 0), entryOf("l/x", fileEntry, "x", 0o644))
	seed(entryOf("l", linkEntry, "a/..", 0), entryOf("l/x", fileEntry, "x", 0o644))
	seed(entryOf("../x", fileEntry, "x", 0o644))
	seed(entryOf("h", hardEntry, "out/victim", 0o644), entryOf("d/", dirEntry, "", 0o7777))
	f.Fuzz(func(t *testing.T, data []byte) {
		outside := t.TempDir()
		put(t, outside+"/victim", "old")
		fsys, paths := open(t)
		must(t, os.Mkdir(paths.Workspace+"/dst", 0o755))
		must(t, os.Symlink(outside, paths.Workspace+"/dst/out"))
		_ = fsys.Unpack(t.Context(), "dst", bytes.NewReader(data)) // most inputs are refused
		wantFile(t, outside+"/victim", "old")
		if got := entries(t, outside); len(got) != 1 {
			t.Errorf("outside: %q", got)
		}
		if got := entries(t, paths.Workspace); len(got) != 1 {
			t.Errorf("beside: %q", got)
		}
	})
}

// Files with holes take no disk space for them, whether unpacked or written.
func TestHolesStayHoles(t *testing.T) {
	f, paths := open(t)
	const size = 64 << 20
	content := make([]byte, size)
	content[size/2] = 1
	must(t, f.Unpack(t.Context(), ".", archive(t, entryOf("unpacked", fileEntry, string(content), 0o644))))
	must(t, f.WriteFile(t.Context(), "written", bytes.NewReader(content), primitives.WriteOptions{}))
	for _, name := range []string{"unpacked", "written"} {
		var st syscall.Stat_t
		must(t, syscall.Stat(filepath.Join(paths.Workspace, name), &st))
		if st.Size != size || st.Blocks*512 > 1<<20 {
			t.Errorf("%s: %d bytes take %d of disk", name, st.Size, st.Blocks*512)
		}
		if got, err := os.ReadFile(filepath.Join(paths.Workspace, name)); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: the content is another one, %v", name, err)
		}
	}
}
