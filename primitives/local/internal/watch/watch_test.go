package watch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestChangesAreReportedInOrder(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/old", "x")
	put(t, dir+"/sub/deep/file", "x")
	w := begin(t, dir, primitives.WatchOptions{})
	must(t, os.WriteFile(dir+"/new", []byte("hello"), 0o644))
	must(t, os.WriteFile(dir+"/sub/deep/file", []byte("changed"), 0o644))
	must(t, os.Chmod(dir+"/old", 0o600))
	must(t, os.Remove(dir+"/old"))
	must(t, os.Symlink("/etc", dir+"/link"))
	must(t, os.RemoveAll(dir+"/sub"))
	w.want(
		"create new", "modify new",
		"modify sub/deep/file",
		"modify old", "remove old",
		"create link",
		"remove sub/deep/file", "remove sub/deep/", "remove sub/",
	)
}

func TestRenameInsideTheTreeIsOneEvent(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/a/file", "x")
	put(t, dir+"/b/other", "x")
	w := begin(t, dir, primitives.WatchOptions{})
	must(t, os.Rename(dir+"/a/file", dir+"/b/moved"))
	must(t, os.Rename(dir+"/b/moved", dir+"/b/other"))
	must(t, os.Rename(dir+"/a", dir+"/c"))
	must(t, os.WriteFile(dir+"/c/inside", nil, 0o644))
	must(t, os.Rename(dir+"/c", dir+"/b/d"))
	must(t, os.Remove(dir+"/b/d/inside"))
	w.want(
		"rename a/file -> b/moved", "rename b/moved -> b/other",
		"rename a -> c/", "create c/inside",
		"rename c -> b/d/", "remove b/d/inside",
	)
}

// halves returns the second half of a rename with the next read.
type halves struct {
	source
	rest []raw
}

func (h *halves) read(until time.Time) (raws []raw, drained bool, err error) {
	if raws, h.rest = h.rest, nil; raws != nil {
		return raws, true, nil
	}
	raws, drained, err = h.source.read(until)
	if i := slices.IndexFunc(raws, func(r raw) bool { return r.kind == rawTo }); i > 0 {
		raws, h.rest, drained = raws[:i], raws[i:], false
	}
	return raws, drained, err
}

func TestRenameIsOneEventHoweverLongTheConsumerTakes(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/file", "x")
	w := beginWith(t, t.Context(), config(dir, primitives.WatchOptions{}), func() (source, error) {
		s, err := newSource()
		return &halves{source: s}, err
	})
	must(t, os.Mkdir(dir+"/new", 0o755))
	must(t, os.Rename(dir+"/file", dir+"/moved"))
	ev, err, _ := w.next()
	if err != nil || ev.Op != primitives.OpCreate {
		t.Fatalf("%+v, %v", ev, err)
	}
	<-time.After(2 * pairWait)
	w.want("rename file -> moved")
}

func TestMovingAcrossTheBorderIsCreationAndRemoval(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	put(t, dir+"/file", "x")
	put(t, dir+"/tree/sub/f", "x")
	put(t, outside+"/in/deep/f", "x")
	w := begin(t, dir, primitives.WatchOptions{})
	must(t, os.Rename(dir+"/file", outside+"/file"))
	must(t, os.Rename(dir+"/tree", outside+"/tree"))
	must(t, os.WriteFile(outside+"/tree/sub/unseen", nil, 0o644))
	must(t, os.Rename(outside+"/in", dir+"/in"))
	w.want(
		"remove file",
		"remove tree/sub/f", "remove tree/sub/", "remove tree/",
		"create in/", "create in/deep/", "create in/deep/f",
	)
	must(t, os.WriteFile(dir+"/in/deep/f", []byte("yy"), 0o644))
	w.want("modify in/deep/f")
}

func TestDirectoryThatIsFilledAtOnceLosesNothing(t *testing.T) {
	dir := t.TempDir()
	w := begin(t, dir, primitives.WatchOptions{})
	want := map[string]bool{}
	for i := range 100 {
		base := "d" + strconv.Itoa(i)
		put(t, filepath.Join(dir, base, "x/y/z/file"), "content")
		for _, p := range []string{"", "/x", "/x/y", "/x/y/z", "/x/y/z/file"} {
			want[base+p] = true
		}
	}
	for _, ev := range w.until() {
		if ev.Op == primitives.OpCreate && !want[ev.Path] {
			t.Errorf("%s was reported twice or never made", ev.Path)
		}
		if ev.Op == primitives.OpCreate {
			delete(want, ev.Path)
		}
	}
	if len(want) > 0 {
		t.Errorf("not reported: %v", want)
	}
}

func TestPatternsChooseWhatIsReported(t *testing.T) {
	for _, c := range []struct {
		rule string
		opts primitives.WatchOptions
		want []string
	}{
		{
			"a pattern without a slash matches at any depth",
			primitives.WatchOptions{Include: []string{"*.go"}},
			[]string{"create a.go", "create node_modules/c.go", "create src/sub/b.go"},
		},
		{
			"a pattern with a slash matches the whole path",
			primitives.WatchOptions{Include: []string{"src/**/*.go", "src/*.md"}},
			[]string{"create src/sub/b.go", "create src/x.md"},
		},
		{
			"ignoring a directory ignores all below",
			primitives.WatchOptions{Ignore: []string{"node_modules", "src/sub/"}},
			[]string{"create a.go", "create src/", "create src/x.md"},
		},
		{
			"ignore wins over include",
			primitives.WatchOptions{Include: []string{"**/*.go"}, Ignore: []string{"/a.go", "sub"}},
			[]string{"create node_modules/c.go"},
		},
		{
			"shallow reports the direct children only",
			primitives.WatchOptions{Shallow: true},
			[]string{"create a.go", "create node_modules/", "create src/"},
		},
	} {
		t.Run(c.rule, func(t *testing.T) {
			dir, stage := t.TempDir(), t.TempDir()
			c.opts.Include = append(c.opts.Include[:len(c.opts.Include):len(c.opts.Include)], marker)
			if len(c.opts.Include) == 1 {
				c.opts.Include = nil
			}
			w := begin(t, dir, c.opts)
			put(t, stage+"/a.go", "")
			put(t, stage+"/node_modules/c.go", "")
			put(t, stage+"/src/sub/b.go", "")
			put(t, stage+"/src/x.md", "")
			for _, name := range []string{"a.go", "node_modules", "src"} {
				must(t, os.Rename(filepath.Join(stage, name), filepath.Join(dir, name)))
			}
			w.want(c.want...)
		})
	}
}

func TestIgnoredDirectoriesTakeNoWatch(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/node_modules/a/b/c/f", "")
	put(t, dir+"/src/f", "")
	w, err := start(t.Context(), config(dir, primitives.WatchOptions{Ignore: []string{"node_modules"}}), newSource)
	must(t, err)
	if len(w.nodes) != 2 {
		t.Errorf("%d watches, want those of the root and src", len(w.nodes))
	}
	close(w.stop)
	<-w.ended
}

func TestRenameAcrossPatternsIsWhatCanBeSeenOfIt(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/f.tmp", "x")
	put(t, dir+"/src/a.go", "x")
	put(t, dir+"/build/out.go", "x")
	w := begin(t, dir, primitives.WatchOptions{Include: []string{"**/*.go", marker}, Ignore: []string{"/build"}})
	must(t, os.Rename(dir+"/f.tmp", dir+"/f.go"))
	must(t, os.Rename(dir+"/f.go", dir+"/f.txt"))
	must(t, os.Rename(dir+"/src", dir+"/lib"))
	must(t, os.Rename(dir+"/build", dir+"/open"))
	must(t, os.Rename(dir+"/lib", dir+"/build"))
	w.want("create f.go", "remove f.go", "rename src/a.go -> lib/a.go", "create open/out.go", "remove lib/a.go")
}

func TestContentComesWithTheEvent(t *testing.T) {
	dir, stage := t.TempDir(), t.TempDir()
	w := begin(t, dir, primitives.WatchOptions{MaxContent: 10})
	put(t, stage+"/fits", "0123456789")
	put(t, stage+"/large", "0123456789a")
	put(t, stage+"/empty", "")
	must(t, syscall.Mkfifo(stage+"/fifo", 0o644))
	must(t, os.Symlink("/etc/passwd", stage+"/link"))
	for _, name := range []string{"fits", "large", "empty", "fifo", "link"} {
		must(t, os.Rename(stage+"/"+name, dir+"/"+name))
	}
	events := w.until()
	if len(events) != 5 {
		t.Fatalf("events: %v", brief(events))
	}
	for i, want := range []struct {
		content string
		size    int64
		omitted primitives.ContentOmitted
	}{
		{"0123456789", 10, ""},
		{"", 11, primitives.OmittedTooLarge},
		{"", 0, ""},
		{"", 0, primitives.OmittedUnreadable},
		{"", 0, primitives.OmittedUnreadable},
	} {
		ev := events[i]
		if string(ev.Content) != want.content || ev.Size != want.size || ev.Omitted != want.omitted {
			t.Errorf("%s: %q of %d bytes, omitted %q", ev.Path, ev.Content, ev.Size, ev.Omitted)
		}
	}
}

func TestDebounceReportsAPathOnceWhenItRests(t *testing.T) {
	dir := t.TempDir()
	w := begin(t, dir, primitives.WatchOptions{Debounce: 50 * time.Millisecond, MaxContent: 100})
	f, err := os.Create(dir + "/busy")
	must(t, err)
	for range 20 {
		_, err := f.WriteString("x")
		must(t, err)
	}
	must(t, f.Close())
	must(t, os.WriteFile(dir+"/a.tmp", []byte("saved"), 0o644))
	must(t, os.Rename(dir+"/a.tmp", dir+"/a"))
	events := w.until()
	got := brief(events)
	if len(got) != 2 || got[0] != "create busy" || got[1] != "create a" || len(events[0].Content) != 20 {
		t.Errorf("got %v", got)
	}
}

func TestWatchEndsWhenTheDirectoryGoes(t *testing.T) {
	for name, end := range map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"moved":   func(dir string) error { return os.Rename(dir, dir+"-gone") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			put(t, dir+"/file", "")
			w := begin(t, dir, primitives.WatchOptions{Debounce: time.Millisecond})
			must(t, end(dir))
			for {
				_, err, ok := w.next()
				if !ok {
					t.Fatal("ended without an error")
				}
				if err != nil {
					var pe *primitives.Error
					if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &pe) || pe.Op != "watch" {
						t.Errorf("got %v", err)
					}
					return
				}
			}
		})
	}
}

func TestWatchEndsWithTheSandbox(t *testing.T) {
	done := make(chan struct{})
	cfg := config(t.TempDir(), primitives.WatchOptions{})
	cfg.Done, cfg.Err = done, func() error { return primitives.ErrTerminated }
	w := beginWith(t, t.Context(), cfg, newSource)
	close(done)
	if _, err, ok := w.next(); !ok || !errors.Is(err, primitives.ErrTerminated) {
		t.Errorf("got %v", err)
	}
}

func TestEveryWayToEndReleasesEverything(t *testing.T) {
	dir := t.TempDir()
	before := openFiles(t)
	ctx, cancel := context.WithCancel(t.Context())
	never, err := start(ctx, config(dir, primitives.WatchOptions{}), newSource)
	must(t, err)
	w := beginWith(t, ctx, config(dir, primitives.WatchOptions{}), newSource)
	w.until()
	w.stop() // leaves the loop
	w = beginWith(t, ctx, config(dir, primitives.WatchOptions{}), newSource)
	cancel()
	if ev, err, ok := w.next(); ok {
		t.Errorf("after cancel: %v %v", ev, err)
	}
	<-never.ended // its events were never read
	if now := openFiles(t); now != before {
		t.Errorf("%d open files, before %d", now, before)
	}
}

func TestEventsCanBeReadOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	events, err := Watch(ctx, config(t.TempDir(), primitives.WatchOptions{}))
	must(t, err)
	cancel() // the first loop ends at once
	for range 2 {
		for _, err := range events {
			if !errors.Is(err, fs.ErrInvalid) {
				t.Errorf("got %v", err)
			}
		}
	}
}

func TestWrongRequestsAreRefused(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/file", "")
	for _, c := range []struct {
		rule string
		cfg  Config
		want error
	}{
		{"missing directory", config(dir+"/nothing", primitives.WatchOptions{}), fs.ErrNotExist},
		{"a file", config(dir+"/file", primitives.WatchOptions{}), primitives.ErrNotDirectory},
		{"malformed include", config(dir, primitives.WatchOptions{Include: []string{"[a"}}), fs.ErrInvalid},
		{"malformed ignore", config(dir, primitives.WatchOptions{Ignore: []string{"{a"}}), fs.ErrInvalid},
		{"empty pattern", config(dir, primitives.WatchOptions{Ignore: []string{""}}), fs.ErrInvalid},
		{"negative size", config(dir, primitives.WatchOptions{MaxContent: -1}), fs.ErrInvalid},
		{"negative time", config(dir, primitives.WatchOptions{Debounce: -1}), fs.ErrInvalid},
	} {
		_, err := Watch(t.Context(), c.cfg)
		var pe *primitives.Error
		if !errors.Is(err, c.want) || !errors.As(err, &pe) || pe.Target != "." {
			t.Errorf("%s: got %v, want %v", c.rule, err, c.want)
		}
	}
}
