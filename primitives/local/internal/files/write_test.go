package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestFailedWriteLeavesTheOldContentAndNothingElse(t *testing.T) {
	f, paths := open(t)
	put(t, paths.Workspace+"/file", "old")
	boom := errors.New("boom")
	for rule, source := range map[string]func(cancel func()) io.Reader{
		"at once":             func(func()) io.Reader { return iotest.ErrReader(boom) },
		"after some content":  func(func()) io.Reader { return io.MultiReader(strings.NewReader("new"), iotest.ErrReader(boom)) },
		"when ctx is done":    func(cancel func()) io.Reader { return &cancelling{cancel} },
		"with data and error": func(func()) io.Reader { return iotest.DataErrReader(&failing{boom}) },
	} {
		for _, name := range []string{"file", "fresh"} {
			ctx, cancel := context.WithCancel(t.Context())
			err := f.WriteFile(ctx, name, source(cancel), primitives.WriteOptions{})
			cancel()
			if !errors.Is(err, boom) && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", rule, err)
			}
		}
		wantFile(t, paths.Workspace+"/file", "old")
		if got := entries(t, paths.Workspace); len(got) != 1 {
			t.Errorf("%s: left %q", rule, got)
		}
	}
}

// cancelling is an endless stream that calls cancel.
type cancelling struct{ cancel func() }

func (c *cancelling) Read(p []byte) (int, error) { c.cancel(); return len(p), nil }

type failing struct{ err error }

func (f *failing) Read(p []byte) (int, error) { p[0] = 'x'; return 1, f.err }

func TestOverwritingKeepsWhatBelongsToTheFile(t *testing.T) {
	f, paths := open(t)
	name := paths.Workspace + "/file"
	put(t, name, "old")
	must(t, os.Chmod(name, 0o751))
	must(t, os.Link(name, paths.Workspace+"/hardlink"))
	owned := os.Geteuid() == 0
	if owned {
		must(t, os.Chown(name, 1234, 4321))
	}
	must(t, write(t.Context(), f, "file", "new", primitives.WriteOptions{}))
	wantFile(t, name, "new")
	wantFile(t, paths.Workspace+"/hardlink", "old")
	info, err := f.Stat(t.Context(), "file")
	must(t, err)
	if info.Mode != 0o751 {
		t.Errorf("mode %v", info.Mode)
	}
	if owned && (info.UID != 1234 || info.GID != 4321) {
		t.Errorf("owner %d:%d", info.UID, info.GID)
	}
	must(t, write(t.Context(), f, "file", "new", primitives.WriteOptions{Mode: 0o600}))
	if info, err = f.Stat(t.Context(), "file"); err != nil || info.Mode != 0o600 {
		t.Errorf("mode %v, %v", info.Mode, err)
	}
}

func TestModeDoesNotDependOnTheUmask(t *testing.T) {
	f, _ := open(t)
	defer syscall.Umask(syscall.Umask(0o077))
	must(t, write(t.Context(), f, "d/plain", "", primitives.WriteOptions{}))
	must(t, write(t.Context(), f, "open", "", primitives.WriteOptions{Mode: 0o777}))
	must(t, write(t.Context(), f, "appended", "", primitives.WriteOptions{Append: true}))
	must(t, f.Mkdir(t.Context(), "e", 0o775))
	for name, want := range map[string]fs.FileMode{
		"d": fs.ModeDir | 0o755, "d/plain": 0o644, "open": 0o777, "appended": 0o644, "e": fs.ModeDir | 0o775,
	} {
		if info, err := f.Stat(t.Context(), name); err != nil || info.Mode != want {
			t.Errorf("%s: %v, %v", name, info.Mode, err)
		}
	}
	for _, mode := range []fs.FileMode{fs.ModeSetuid | 0o755, fs.ModeDir | 0o755} {
		if err := write(t.Context(), f, "x", "", primitives.WriteOptions{Mode: mode}); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%v: %v", mode, err)
		}
	}
}

func TestLinksAreWrittenThrough(t *testing.T) {
	f, paths := open(t)
	ws := paths.Workspace
	put(t, ws+"/dir/target", "old")
	for _, l := range [][2]string{
		{"relative", "dir/target"},
		{"absolute", ws + "/dir/target"},
		{"chain", "relative"},
		{"dangling", "dir/made"},
		{"dangling-deep", "no/such/dir/made"},
	} {
		link, target := l[0], l[1]
		must(t, os.Symlink(target, ws+"/"+link))
		must(t, write(t.Context(), f, link, link, primitives.WriteOptions{}))
		if info, err := f.Stat(t.Context(), link); err != nil || info.Mode.Type() != fs.ModeSymlink || info.Target != target {
			t.Errorf("%s: is no longer the link: %+v %v", link, info, err)
		}
		wantFile(t, ws+"/"+link, link)
		if got, err := read(t.Context(), f, link); err != nil || got != link {
			t.Errorf("%s: read %q, %v", link, got, err)
		}
	}
	must(t, os.Symlink("dir", ws+"/dirlink"))
	must(t, write(t.Context(), f, "dirlink/../dirlink/below", "x", primitives.WriteOptions{}))
	wantFile(t, ws+"/dir/below", "x")
	outside := filepath.Join(t.TempDir(), "free")
	must(t, os.Symlink("there", outside))
	must(t, write(t.Context(), f, outside, "free", primitives.WriteOptions{}))
	wantFile(t, filepath.Dir(outside)+"/there", "free")
}

func TestAppendAddsToTheEnd(t *testing.T) {
	f, paths := open(t)
	for range 3 {
		must(t, write(t.Context(), f, "a/log", "line\n", primitives.WriteOptions{Append: true}))
	}
	wantFile(t, paths.Workspace+"/a/log", "line\nline\nline\n")
	must(t, syscall.Mkfifo(paths.Workspace+"/fifo", 0o644))
	if err := write(t.Context(), f, "fifo", "x", primitives.WriteOptions{Append: true}); !errors.Is(err, primitives.ErrNotRegular) {
		t.Errorf("fifo: %v", err)
	}
	opts := primitives.WriteOptions{Append: true, Exclusive: true}
	if err := write(t.Context(), f, "a/log", "x", opts); !errors.Is(err, fs.ErrExist) {
		t.Errorf("exclusive: %v", err)
	}
	must(t, write(t.Context(), f, "b", "x", opts))
}

func TestExclusiveIsWonByOne(t *testing.T) {
	f, paths := open(t)
	if err := race(20, func(i int) error {
		return write(t.Context(), f, "once", strconv.Itoa(i), primitives.WriteOptions{Exclusive: true})
	}, fs.ErrExist); err != nil {
		t.Error(err)
	}
	if got := entries(t, paths.Workspace); len(got) != 1 {
		t.Errorf("left %q", got)
	}
	must(t, os.Symlink("nowhere", paths.Workspace+"/dangling"))
	must(t, write(t.Context(), f, "dangling", "x", primitives.WriteOptions{Exclusive: true}))
	wantFile(t, paths.Workspace+"/nowhere", "x")
}

func TestRevisionIsWonByOne(t *testing.T) {
	f, paths := open(t)
	must(t, write(t.Context(), f, "file", "0", primitives.WriteOptions{}))
	info, err := f.Stat(t.Context(), "file")
	must(t, err)
	if err := race(20, func(i int) error {
		return write(t.Context(), f, "file", strconv.Itoa(i), primitives.WriteOptions{IfRevision: info.Revision})
	}, primitives.ErrConflict); err != nil {
		t.Error(err)
	}
	info, err = f.Stat(t.Context(), "file")
	must(t, err)
	must(t, os.Remove(paths.Workspace+"/file"))
	for _, opts := range []primitives.WriteOptions{{IfRevision: info.Revision}, {IfRevision: info.Revision, Append: true}} {
		if err := write(t.Context(), f, "file", "x", opts); !errors.Is(err, primitives.ErrConflict) {
			t.Errorf("gone: %v", err)
		}
	}
	if err := write(t.Context(), f, "x", "x", primitives.WriteOptions{IfRevision: "r", Exclusive: true}); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("both: %v", err)
	}
}

// race runs n calls at once and checks that one succeeds and the others fail
// with want.
func race(n int, call func(i int) error, want error) error {
	var won atomic.Int32
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			err := call(i)
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, want):
				errs[i] = err
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		errs = append(errs, errors.New(strconv.Itoa(int(won.Load()))+" calls won"))
	}
	return errors.Join(errs...)
}

func TestRevisionChangesWithTheContent(t *testing.T) {
	f, paths := open(t)
	seen := map[string]bool{}
	note := func(what string) {
		info, err := f.Stat(t.Context(), "file")
		must(t, err)
		if info.Revision == "" || seen[info.Revision] {
			t.Errorf("%s: revision %q", what, info.Revision)
		}
		seen[info.Revision] = true
	}
	must(t, write(t.Context(), f, "file", "1", primitives.WriteOptions{}))
	note("new")
	must(t, write(t.Context(), f, "file", "1", primitives.WriteOptions{}))
	note("replaced by the same")
	must(t, write(t.Context(), f, "file", "2", primitives.WriteOptions{Append: true}))
	note("longer")
	must(t, os.WriteFile(paths.Workspace+"/file", []byte("xy"), 0o644))
	note("rewritten in place")
}

func TestReaderSeesOneVersionWhole(t *testing.T) {
	f, _ := open(t)
	versions := []string{strings.Repeat("a", 100_000), strings.Repeat("b", 300_000)}
	must(t, write(t.Context(), f, "file", versions[0], primitives.WriteOptions{}))
	var writer sync.WaitGroup
	defer writer.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if err := write(ctx, f, "file", versions[i%2], primitives.WriteOptions{}); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	for range 100 {
		got, err := read(t.Context(), f, "file")
		must(t, err)
		if got != versions[0] && got != versions[1] {
			t.Fatalf("read a mixture of %d bytes", len(got))
		}
	}
}

func TestBatchWritesEachFileAsWriteFileWould(t *testing.T) {
	f, paths := open(t)
	ws := paths.Workspace
	put(t, ws+"/old", "old")
	must(t, os.Chmod(ws+"/old", 0o700))
	must(t, os.Symlink("linked", ws+"/link"))
	must(t, os.Mkdir(ws+"/dir", 0o755))
	errs, err := f.WriteFiles(t.Context(), []primitives.File{
		{Path: "a/b/1", Content: []byte("1")},
		{Path: "a/b/2", Content: []byte("2"), Mode: 0o755},
		{Path: "dir", Content: []byte("x")},
		{Path: "../out", Content: []byte("x")},
		{Path: "old", Content: []byte("new")},
		{Path: "link", Content: []byte("through")},
		{Path: paths.Home + "/h", Content: []byte("home")},
		{Path: "a/b/1", Content: []byte("again")},
		{Path: "new/"},
		{Path: ""},
		{Path: "old/x"},
		{Path: "empty"},
	})
	must(t, err)
	want := map[int]error{
		2: primitives.ErrIsDirectory, 3: primitives.ErrPathEscape, 8: primitives.ErrIsDirectory,
		9: fs.ErrInvalid, 10: primitives.ErrNotDirectory,
	}
	for i, err := range errs {
		if !errors.Is(err, want[i]) {
			t.Errorf("%d: %v, want %v", i, err, want[i])
		}
	}
	for name, content := range map[string]string{
		"/a/b/1": "again", "/a/b/2": "2", "/old": "new", "/linked": "through", "/../home/h": "home", "/empty": "",
	} {
		wantFile(t, ws+name, content)
	}
	if info, err := f.Stat(t.Context(), "old"); err != nil || info.Mode != 0o700 {
		t.Errorf("mode %v %v", info.Mode, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.WriteFiles(ctx, []primitives.File{{Path: "x"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestALargeFileIsReplacedAtOnce(t *testing.T) {
	f, paths := open(t)
	must(t, os.WriteFile(paths.Workspace+"/large", nil, 0o640))
	for _, content := range []string{"first", "second"} {
		must(t, os.Truncate(paths.Workspace+"/large", slowToFree))
		must(t, write(t.Context(), f, "large", content, primitives.WriteOptions{}))
		wantFile(t, paths.Workspace+"/large", content)
	}
	must(t, f.Close())
	if info, err := os.Stat(paths.Workspace + "/large"); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("got %v, %v", info, err)
	}
}
