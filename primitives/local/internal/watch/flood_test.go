package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// apply updates the set of paths that a consumer of the events knows.
func apply(known map[string]bool, ev primitives.WatchEvent) {
	switch ev.Op {
	case primitives.OpCreate:
		known[ev.Path] = true
	case primitives.OpRemove:
		delete(known, ev.Path)
	case primitives.OpRename:
		for p := range known {
			if rest, ok := strings.CutPrefix(p, ev.From+"/"); ok {
				delete(known, p)
				known[ev.Path+"/"+rest] = true
			}
		}
		delete(known, ev.From)
		known[ev.Path] = true
	case primitives.OpModify, primitives.OpOverflow:
	}
}

// reality returns the set of paths below a directory.
func reality(t *testing.T, dir string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	must(t, fs.WalkDir(os.DirFS(dir), ".", func(p string, _ fs.DirEntry, err error) error {
		if p != "." {
			found[p] = true
		}
		return err
	}))
	return found
}

// age waits until the file system's clock is past the modification time of a file.
func age(t *testing.T, name string) {
	t.Helper()
	old, err := os.Stat(name)
	must(t, err)
	probe := filepath.Join(t.TempDir(), "probe")
	for {
		must(t, os.WriteFile(probe, []byte("x"), 0o644))
		info, err := os.Stat(probe)
		must(t, err)
		if info.ModTime().Sub(old.ModTime()) > 2*clockSlack {
			return
		}
	}
}

func TestOverflowIsReportedAndMadeUpFor(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/gone/file", "x")
	put(t, dir+"/touched", "x")
	put(t, dir+"/swapped/file", "x")
	put(t, dir+"/quiet", "x")
	age(t, dir+"/quiet")
	known := reality(t, dir)
	w := begin(t, dir, primitives.WatchOptions{})
	for i := range 17_000 { // more events than the kernel keeps
		must(t, os.WriteFile(fmt.Sprintf("%s/f%05d", dir, i), nil, 0o644))
	}
	// The kernel drops the events of all of these.
	must(t, os.RemoveAll(dir+"/gone"))
	put(t, dir+"/touched", "changed")
	must(t, os.RemoveAll(dir+"/swapped"))
	put(t, dir+"/swapped", "a file now")
	put(t, dir+"/new/deep/file", "x")
	must(t, os.Remove(dir+"/f00000"))
	var overflow, touched int
	var events []primitives.WatchEvent
	for overflow == 0 || len(known) < 17_000+5 || !known["new/deep/file"] {
		ev, err, ok := w.next()
		if err != nil || !ok {
			t.Fatal(err)
		}
		apply(known, ev)
		events = append(events, ev)
		if ev.Op == primitives.OpOverflow {
			overflow = len(events)
		}
	}
	for _, ev := range append(events[overflow:], w.until()...) {
		apply(known, ev)
		if ev.Op == primitives.OpModify && ev.Path == "touched" {
			touched++
		}
		if ev.Path == "quiet" {
			t.Errorf("a file that did not change: %v", brief([]primitives.WatchEvent{ev}))
		}
	}
	if touched == 0 {
		t.Error("the changed file was not reported")
	}
	known[marker] = true
	if found := reality(t, dir); len(found) != len(known) {
		t.Errorf("%d paths exist, the events tell of %d", len(found), len(known))
	} else {
		for p := range found {
			if !known[p] {
				t.Errorf("%s was not reported", p)
			}
		}
	}
	// What the rescan has found is watched.
	put(t, dir+"/new/deep/file", "again")
	w.want("modify new/deep/file")
}

// A consumer that starts from a listing and applies the events ends up with the actual tree,
// whatever a program does meanwhile.
func TestEventsLeadToWhatIsThere(t *testing.T) {
	for name, open := range map[string]func() (source, error){
		"in large reads": newSource,
		"one at a time":  func() (source, error) { src, err := newSource(); return &dripping{source: src}, err },
	} {
		t.Run(name, func(t *testing.T) { converge(t, open) })
	}
}

// dripping returns one change at a time, which separates the halves of a rename.
type dripping struct {
	source
	held    []raw
	drained bool
}

func (d *dripping) read(until time.Time) ([]raw, bool, error) {
	if len(d.held) == 0 {
		var err error
		if d.held, d.drained, err = d.source.read(until); err != nil {
			return nil, false, err
		}
	}
	first := d.held[:1]
	d.held = d.held[1:]
	return first, d.drained && len(d.held) == 0, nil
}

func converge(t *testing.T, open func() (source, error)) {
	t.Helper()
	dir := t.TempDir()
	w := beginWith(t, t.Context(), config(dir, primitives.WatchOptions{}), open)
	known := map[string]bool{}
	steps := []func(i int) error{
		func(i int) error { return os.MkdirAll(fmt.Sprintf("%s/d%d/e/f", dir, i%5), 0o755) },
		func(i int) error { return os.WriteFile(fmt.Sprintf("%s/d%d/e/x%d", dir, i%5, i), nil, 0o644) },
		func(i int) error { return os.Rename(fmt.Sprintf("%s/d%d", dir, i%5), fmt.Sprintf("%s/m%d", dir, i)) },
		func(i int) error {
			return os.Rename(fmt.Sprintf("%s/d%d/e", dir, (i+1)%5), fmt.Sprintf("%s/d%d/e/f/g%d", dir, (i+2)%5, i))
		},
		func(i int) error { return os.RemoveAll(fmt.Sprintf("%s/d%d", dir, (i+3)%5)) },
		func(i int) error { return os.WriteFile(fmt.Sprintf("%s/d%d/e/f/y%d", dir, (i+2)%5, i), nil, 0o644) },
	}
	for round := range 30 {
		for i, step := range steps {
			_ = step(round + i) // some find nothing to change
		}
		for _, ev := range w.until() {
			apply(known, ev)
		}
		known[marker] = true
		found := reality(t, dir)
		for p := range found {
			if !known[p] {
				t.Fatalf("round %d: %s exists and was not reported", round, p)
			}
		}
		for p := range known {
			if !found[p] {
				t.Fatalf("round %d: %s was reported and does not exist", round, p)
			}
		}
	}
}

// limited is a source that allows a number of watches.
type limited struct {
	source
	left int
}

func (l *limited) add(dir int, path string) (int, error) {
	if l.left--; l.left < 0 {
		return -1, limitReached()
	}
	return l.source.add(dir, path)
}

func TestExhaustedWatchesAreATypedErrorThatNamesTheSetting(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/a/b/c", "")
	before := openFiles(t)
	open := func(n int) func() (source, error) {
		return func() (source, error) {
			src, err := newSource()
			return &limited{src, n}, err
		}
	}
	_, err := start(t.Context(), config(dir, primitives.WatchOptions{}), open(2))
	if !errors.Is(err, primitives.ErrLimit) || !strings.Contains(err.Error(), "fs.inotify.max_user_watches") {
		t.Errorf("got %v", err)
	}
	if now := openFiles(t); now != before {
		t.Errorf("%d open files, before %d", now, before)
	}
	w := beginWith(t, t.Context(), config(dir, primitives.WatchOptions{}), open(3))
	must(t, os.Mkdir(dir+"/more", 0o755))
	for {
		_, err, ok := w.next()
		if !ok || err != nil {
			if !errors.Is(err, primitives.ErrLimit) {
				t.Errorf("got %v", err)
			}
			return
		}
	}
}

func TestSourceWithoutPairsReportsTheSameChanges(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/sub/file", "x")
	w := beginWith(t, t.Context(), config(dir, primitives.WatchOptions{}), newNotify)
	put(t, dir+"/new/deep/file", "x")
	must(t, os.WriteFile(dir+"/sub/file", []byte("yy"), 0o644))
	must(t, os.Rename(dir+"/sub", dir+"/moved"))
	must(t, os.Remove(dir+"/moved/file"))
	known := map[string]bool{"sub": true, "sub/file": true}
	for _, ev := range w.until() {
		if ev.Op == primitives.OpRename {
			t.Errorf("a rename: %+v", ev)
		}
		apply(known, ev)
	}
	known[marker] = true
	got := []string{}
	for p := range known {
		got = append(got, p)
	}
	slices.Sort(got)
	if want := []string{"moved", "new", "new/deep", "new/deep/file", marker}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
