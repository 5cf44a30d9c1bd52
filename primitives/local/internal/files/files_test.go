package files

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestWriteThenReadReturnsTheSameBytes(t *testing.T) {
	f, paths := open(t)
	for name, content := range map[string]string{
		"text":                   "great #content\nincluding newlines",
		"crlf":                   "a\r\nb\r\n",
		"binary":                 "\xc3\x28\x00\xff",
		"empty":                  "",
		"big":                    strings.Repeat("\xc3", 5<<20),
		"new/parents/are/made":   "x",
		"file with space.file":   "to the moon",
		paths.Home + "/abs/file": "absolute",
		"x/../dots":              "inside",
	} {
		if name == "x/../dots" {
			must(t, f.Mkdir(t.Context(), "x", 0))
		}
		must(t, write(t.Context(), f, name, content, primitives.WriteOptions{}))
		got, err := read(t.Context(), f, name)
		if err != nil || got != content {
			t.Errorf("%s: got %.40q and %v", name, got, err)
		}
	}
	wantFile(t, paths.Workspace+"/text", "great #content\nincluding newlines")
}

func TestNamesOfEveryKindWork(t *testing.T) {
	f, paths := open(t)
	names := []string{
		"\xfe", "caf\u00e9", "✨☽", " lead", "trail ", "trail.", "~", "~root", "...", "..a", "a..", "-rf", "*", "?", "[a]", "{a}",
		"a\\b", "q\"uote", "new\nline", "\r", "\t", "\v", "test%46.txt", "https:", "\x7f", "$HOME", "`id`", "a:b", strings.Repeat("n", 255),
	}
	for c := byte(1); c < 0x20; c++ {
		names = append(names, "c"+string([]byte{c}))
	}
	for _, name := range names {
		must(t, write(t.Context(), f, name, name, primitives.WriteOptions{}))
		if got, err := read(t.Context(), f, name); err != nil || got != name {
			t.Errorf("%q: read %q, %v", name, got, err)
		}
		if info, err := f.Stat(t.Context(), name); err != nil || info.Path != name || info.Size != int64(len(name)) {
			t.Errorf("%q: stat %+v, %v", name, info, err)
		}
	}
	infos, err := f.List(t.Context(), ".", primitives.ListOptions{})
	must(t, err)
	got := []string{}
	for _, i := range infos {
		got = append(got, i.Path)
	}
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("listed %q\nwant   %q", got, names)
	}
	for _, name := range names {
		must(t, f.Move(t.Context(), name, "moved"))
		must(t, f.Remove(t.Context(), "moved", false))
	}
	if left := entries(t, paths.Workspace); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

func TestEveryFailureIsItsSentinelAndNamesThePath(t *testing.T) {
	f, paths := open(t)
	ws := paths.Workspace
	put(t, ws+"/file", "old")
	put(t, ws+"/dir/inner", "")
	must(t, syscall.Mkfifo(ws+"/fifo", 0o644))
	must(t, os.Symlink("loop2", ws+"/loop1"))
	must(t, os.Symlink("loop1", ws+"/loop2"))
	must(t, os.Symlink("/etc/passwd", ws+"/out"))
	must(t, os.Symlink("nowhere", ws+"/dangling"))
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	must(t, err)
	defer l.Close()
	sock := l.Addr().String()
	ctx := t.Context()

	readErr := func(name string) error { _, err := read(ctx, f, name); return err }
	writeErr := func(name string) error { return write(ctx, f, name, "new", primitives.WriteOptions{}) }
	listErr := func(name string) error { _, err := f.List(ctx, name, primitives.ListOptions{}); return err }
	statErr := func(name string) error { _, err := f.Stat(ctx, name); return err }
	mkdirErr := func(name string) error { return f.Mkdir(ctx, name, 0) }
	removeErr := func(name string) error { return f.Remove(ctx, name, false) }
	treeErr := func(name string) error { return f.Remove(ctx, name, true) }
	resolveErr := func(name string) error { _, err := f.Resolve(name); return err }
	for _, c := range []struct {
		rule string
		op   func(string) error
		name string
		want error
	}{
		{"read missing", readErr, "nothing", fs.ErrNotExist},
		{"read url", readErr, "https:/en.wikipedia.org/wiki/Bart%C5%82omiej", fs.ErrNotExist},
		{"read directory", readErr, "dir", primitives.ErrIsDirectory},
		{"read absolute directory", readErr, "/etc", primitives.ErrIsDirectory},
		{"read workspace", readErr, ".", primitives.ErrIsDirectory},
		{"read below file", readErr, "file/x", primitives.ErrNotDirectory},
		{"read fifo", readErr, "fifo", primitives.ErrNotRegular},
		{"read absolute fifo", readErr, ws + "/fifo", primitives.ErrNotRegular},
		{"read socket", readErr, sock, primitives.ErrNotRegular},
		{"read device", readErr, "/dev/null", primitives.ErrNotRegular},
		{"read empty path", readErr, "", fs.ErrInvalid},
		{"read NUL", readErr, "a\x00b", fs.ErrInvalid},
		{"read cycle", readErr, "loop1", fs.ErrInvalid},
		{"read through escaping link", readErr, "out", primitives.ErrPathEscape},
		{"read dangling", readErr, "dangling", fs.ErrNotExist},
		{"read too long", readErr, strings.Repeat("n", 256), fs.ErrInvalid},
		{"read much too long", readErr, strings.Repeat("d/", 4000), fs.ErrInvalid},
		{"write directory", writeErr, "dir", primitives.ErrIsDirectory},
		{"write trailing slash", writeErr, "newdir/", primitives.ErrIsDirectory},
		{"write workspace", writeErr, ".", primitives.ErrIsDirectory},
		{"write below file", writeErr, "file/x/y", primitives.ErrNotDirectory},
		{"write fifo", writeErr, "fifo", primitives.ErrNotRegular},
		{"write device", writeErr, "/dev/null", primitives.ErrNotRegular},
		{"write dotdot", writeErr, "../x", primitives.ErrPathEscape},
		{"write through escaping link", writeErr, "out", primitives.ErrPathEscape},
		{"write too long", writeErr, strings.Repeat("n", 256), fs.ErrInvalid},
		{"list missing", listErr, "nothing", fs.ErrNotExist},
		{"list file", listErr, "file", primitives.ErrNotDirectory},
		{"list escape", listErr, "..", primitives.ErrPathEscape},
		{"stat missing", statErr, "nothing", fs.ErrNotExist},
		{"stat escape", statErr, "dir/../../x", primitives.ErrPathEscape},
		{"mkdir on file", mkdirErr, "file", primitives.ErrNotDirectory},
		{"mkdir below file", mkdirErr, "file/d", primitives.ErrNotDirectory},
		{"mkdir on dangling", mkdirErr, "dangling", primitives.ErrNotDirectory},
		{"mkdir escape", mkdirErr, "../workspace-evil/d", primitives.ErrPathEscape},
		{"remove missing", removeErr, "nothing", fs.ErrNotExist},
		{"remove missing tree", treeErr, "nothing", fs.ErrNotExist},
		{"remove full directory", removeErr, "dir", primitives.ErrNotEmpty},
		{"remove workspace", treeErr, ".", fs.ErrInvalid},
		{"remove workspace by detour", treeErr, "dir/..", fs.ErrInvalid},
		{"remove workspace by its path", treeErr, ws, fs.ErrInvalid},
		{"remove session", treeErr, paths.Session, fs.ErrInvalid},
		{"remove app", treeErr, paths.App, fs.ErrInvalid},
		{"remove home", removeErr, paths.Home, fs.ErrInvalid},
		{"remove above the session", treeErr, filepath.Dir(paths.Session), fs.ErrInvalid},
		{"remove everything", treeErr, "/", fs.ErrInvalid},
		{"resolve missing", resolveErr, "nothing", fs.ErrNotExist},
		{"resolve file", resolveErr, "file", primitives.ErrNotDirectory},
		{"resolve escape", resolveErr, "..", primitives.ErrPathEscape},
	} {
		err := c.op(c.name)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.rule, err, c.want)
			continue
		}
		var pe *primitives.Error
		if !errors.As(err, &pe) || pe.Target != c.name || pe.Backend != "local" || pe.Op == "" {
			t.Errorf("%s: %#v does not say where", c.rule, err)
		}
	}
	wantFile(t, ws+"/file", "old")
	if _, err := os.Stat(filepath.Dir(ws) + "/x"); err == nil {
		t.Error("a file was written beside the workspace")
	}
}

func TestReaderKeepsTheRulesOfReaders(t *testing.T) {
	f, _ := open(t)
	content := strings.Repeat("0123456789", 1000)
	must(t, write(t.Context(), f, "f", content, primitives.WriteOptions{}))
	r, err := f.Open(t.Context(), "f")
	must(t, err)
	must(t, iotest.TestReader(r, []byte(content)))
	must(t, r.Close())
	must(t, r.Close())
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
}

func TestReadingStopsWithTheContext(t *testing.T) {
	f, _ := open(t)
	must(t, write(t.Context(), f, "f", "content", primitives.WriteOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	r, err := f.Open(ctx, "f")
	must(t, err)
	defer r.Close()
	cancel()
	if _, err := r.Read(make([]byte, 10)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAfterCloseEverythingIsUnavailable(t *testing.T) {
	f, paths := open(t)
	must(t, f.Close())
	must(t, f.Close())
	for _, name := range []string{"x", paths.Home} {
		if _, err := f.Stat(t.Context(), name); !errors.Is(err, primitives.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWorkspaceMayBeMadeAnewButNotReplacedByALink(t *testing.T) {
	f, paths := open(t)
	must(t, os.RemoveAll(paths.Workspace))
	if _, err := f.Stat(t.Context(), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
	must(t, os.Mkdir(paths.Workspace, 0o755))
	must(t, write(t.Context(), f, "x", "again", primitives.WriteOptions{}))
	wantFile(t, paths.Workspace+"/x", "again")
	must(t, os.RemoveAll(paths.Workspace))
	must(t, os.Symlink("/etc", paths.Workspace))
	if _, err := f.Open(t.Context(), "passwd"); !errors.Is(err, primitives.ErrPathEscape) {
		t.Errorf("replaced: %v", err)
	}
}
