package primitivestest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// watcher collects the events of a watch.
type watcher struct {
	s      *sandbox
	events chan primitives.WatchEvent
	end    chan error
	stop   context.CancelFunc
	seen   []primitives.WatchEvent
}

// watch starts watching a folder of the case.
func (s *sandbox) watch(t testingT, name string, opts primitives.WatchOptions) *watcher {
	t.Helper()
	w, collect := s.watchLate(t, name, opts)
	collect()
	return w
}

// watchLate is like watch, but takes no event before collect is called.
func (s *sandbox) watchLate(t testingT, name string, opts primitives.WatchOptions) (w *watcher, collect func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seq, err := s.Watch(ctx, s.in(name), opts)
	if err != nil {
		cancel()
		t.Fatalf("Watch: %v", err)
	}
	w = &watcher{s: s, events: make(chan primitives.WatchEvent, 1<<16), end: make(chan error, 1), stop: cancel}
	joined, begin := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(joined)
		select {
		case <-begin:
		case <-ctx.Done():
		}
		var last error
		for ev, err := range seq {
			if err != nil {
				last = err
				break
			}
			w.events <- ev
		}
		w.end <- last
	}()
	t.Cleanup(func() {
		cancel()
		timer := time.NewTimer(s.suite.patience)
		defer timer.Stop()
		select {
		case <-joined:
		case <-timer.C:
			t.Errorf("the watch did not end when its context was cancelled")
		}
	})
	return w, func() { close(begin) }
}

// until collects events up to a wanted one, and returns it. The time limit applies to each
// event, because there may be many.
func (w *watcher) until(t testingT, what string, wanted func(ev primitives.WatchEvent) bool) primitives.WatchEvent {
	t.Helper()
	take := func(ev primitives.WatchEvent) bool {
		w.seen = append(w.seen, ev)
		return wanted(ev)
	}
	timer := time.NewTimer(w.s.suite.patience)
	defer timer.Stop()
	for {
		select {
		case ev := <-w.events:
			if take(ev) {
				return ev
			}
			timer.Reset(w.s.suite.patience)
		case err := <-w.end:
			w.end <- err            // for the next receiver
			for len(w.events) > 0 { // these events came before the end
				if ev := <-w.events; take(ev) {
					return ev
				}
			}
			t.Fatalf("the watch has ended before %s: %v; seen: %s", what, err, brief(eventText(w.seen)))
		case <-timer.C:
			t.Fatalf(inVain+" for %s; seen: %s", what, brief(eventText(w.seen)))
		}
	}
}

// event collects events up to one of this kind for this path, and returns it.
func (w *watcher) event(t testingT, op primitives.WatchOp, path string) primitives.WatchEvent {
	t.Helper()
	return w.until(t, string(op)+" "+path, func(ev primitives.WatchEvent) bool { return ev.Op == op && ev.Path == path })
}

// mark creates a file in the watched folder and waits for its event, so that all events before
// it have been seen. It returns the events since the last mark.
func (w *watcher) mark(t testingT, folder string) []primitives.WatchEvent {
	t.Helper()
	name := fmt.Sprintf("mark-%d", w.s.suite.cases.Add(1))
	w.s.probed(t, "write", w.s.abs(folder, name), "")
	w.event(t, primitives.OpCreate, name)
	seen := w.seen[:len(w.seen)-1]
	w.seen = nil
	return seen
}

// eventText returns events as one line. Modifications of a file that was just created count as
// part of the creation; those of directories are left out.
func eventText(events []primitives.WatchEvent) string {
	var parts []string
	created := map[string]bool{}
	for _, ev := range events {
		if ev.Op == primitives.OpCreate {
			created[ev.Path] = true
		}
		if ev.Op == primitives.OpModify && (created[ev.Path] || ev.Dir) {
			continue
		}
		part := string(ev.Op) + " " + ev.Path
		if ev.From != "" {
			part += " from " + ev.From
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// expectEvents compares the events since the last mark.
func (w *watcher) expectEvents(t testingT, folder, want string) {
	t.Helper()
	expect(t, "events", eventText(w.mark(t, folder)), want)
}

func watchRules() []rule {
	return concat(changeEventRules(), treeEventRules(), batchEventRules(), burstRules(), watchEndRules())
}

// changeEventRules returns the rules that one change is one event.
func changeEventRules() []rule { return concat(fileEventRules(), moveEventRules()) }

func fileEventRules() []rule {
	whole := primitives.WatchOptions{}
	return []rule{
		{name: "a change right after Watch is reported", check: func(t testingT, s *sandbox) {
			for range 10 {
				s.watch(t, ".", whole).mark(t, ".")
			}
		}},
		{name: "a new file is create", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", whole)
			s.probed(t, "write", "f", "12345")
			ev := w.event(t, primitives.OpCreate, "f")
			expect(t, "directory", ev.Dir, false)
			expect(t, "time is missing", ev.Time.IsZero(), false)
		}},
		{name: "a new folder is create and says that it is one", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", whole)
			s.probed(t, "mkdir", "d")
			expect(t, "directory", w.event(t, primitives.OpCreate, "d").Dir, true)
		}},
		{name: "new content is modify", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			w := s.watch(t, ".", whole)
			s.probed(t, "append", "f", "new")
			w.event(t, primitives.OpModify, "f")
		}},
		{name: "new permission is modify", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			w := s.watch(t, ".", whole)
			s.probed(t, "chmod", "600", "f")
			w.event(t, primitives.OpModify, "f")
		}},
		{name: "the size after a modification is that of the file", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			w := s.watch(t, ".", whole)
			s.probed(t, "append", "f", "12345")
			w.until(t, "modify with size 8", func(ev primitives.WatchEvent) bool {
				return ev.Op == primitives.OpModify && ev.Path == "f" && ev.Size == 8
			})
		}},
		{name: "a file that goes is remove", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "x")
			w := s.watch(t, ".", whole)
			s.probed(t, "rm", "f")
			w.expectEvents(t, ".", "remove f")
		}},
	}
}

func moveEventRules() []rule {
	whole := primitives.WatchOptions{}
	return []rule{
		{name: "a renamed file is one rename with both names", check: func(t testingT, s *sandbox) {
			s.write(t, "old", "x")
			w := s.watch(t, ".", whole)
			s.probed(t, "rename", "old", "new")
			w.expectEvents(t, ".", "rename new from old")
		}},
		{name: "a file moved to another folder of the tree is one rename", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a", "mkdir", "b", "write", "a/f", "x")
			w := s.watch(t, ".", whole)
			s.probed(t, "rename", "a/f", "b/g")
			w.expectEvents(t, ".", "rename b/g from a/f")
		}},
		{name: "a file moved in is create", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "in", "write", "f", "x")
			w := s.watch(t, "in", whole)
			s.probed(t, "rename", "f", "in/f")
			w.expectEvents(t, "in", "create f")
		}},
		{name: "a file moved out is remove", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "in", "write", "in/f", "x")
			w := s.watch(t, "in", whole)
			s.probed(t, "rename", "in/f", "f")
			w.expectEvents(t, "in", "remove f")
		}},
		{name: "a replaced file is not a removal", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			w := s.watch(t, ".", whole)
			s.write(t, "f", "new")
			for _, ev := range w.mark(t, ".") {
				if ev.Op == primitives.OpRemove && ev.Path == "f" {
					t.Errorf("f was reported as removed")
				}
			}
		}},
		{name: "a change made through the sandbox itself is reported", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", whole)
			s.write(t, "f", "x")
			ev := w.until(t, "f", func(ev primitives.WatchEvent) bool { return ev.Path == "f" })
			expect(t, "kind", ev.Op, primitives.OpCreate)
		}},
		{name: "events come in the order of the changes", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", whole)
			s.probed(t, "write", "a", "", "write", "b", "", "rm", "a", "rename", "b", "c", "write", "d", "", "rm", "c")
			w.expectEvents(t, ".", "create a, create b, remove a, rename c from b, create d, remove c")
		}},
	}
}

// batchEventRules returns the rules about batches. How a batch creates its files is up to the
// backend.
func batchEventRules() []rule {
	return []rule{
		{name: "the folders and files of a batch are created once, under their own names", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", primitives.WatchOptions{})
			s.writeBatch(t, primitives.File{Path: "a/b/f"}, primitives.File{Path: "a/b/g"}, primitives.File{Path: "a/f"}, primitives.File{Path: "h"})
			var got []string
			for _, ev := range w.mark(t, ".") {
				if ev.Op != primitives.OpModify {
					got = append(got, string(ev.Op)+" "+ev.Path)
				}
			}
			slices.Sort(got)
			expect(t, "events", strings.Join(got, ", "), "create a, create a/b, create a/b/f, create a/b/g, create a/f, create h")
		}},
	}
}

// treeEventRules returns the rules that the whole tree is watched, including new directories.
func treeEventRules() []rule {
	whole := primitives.WatchOptions{}
	return []rule{
		{name: "changes deep in the tree are reported", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a/b/c/d", "write", "a/b/c/d/f", "x")
			w := s.watch(t, ".", whole)
			s.probed(t, "rm", "a/b/c/d/f")
			w.expectEvents(t, ".", "remove a/b/c/d/f")
		}},
		{name: "changes in a folder that came later are reported", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", whole)
			s.probed(t, "mkdir", "a/b")
			w.event(t, primitives.OpCreate, "a/b")
			s.probed(t, "write", "a/b/f", "x")
			w.event(t, primitives.OpCreate, "a/b/f")
			s.probed(t, "rm", "a/b/f")
			w.event(t, primitives.OpRemove, "a/b/f")
		}},
		{name: "a folder made and filled at once loses nothing", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", whole)
			s.probed(t, "mkdir", "a/b/c", "write", "a/f", "", "write", "a/b/f", "", "write", "a/b/c/f", "", "many", "100", "a/b/c/many")
			want := map[string]bool{}
			for p := range strings.FieldsSeq("a a/b a/b/c a/f a/b/f a/b/c/f a/b/c/many a/b/c/many/f00000 a/b/c/many/f00099") {
				want[p] = true
			}
			w.until(t, "all of the folder", func(ev primitives.WatchEvent) bool {
				if ev.Op == primitives.OpCreate {
					delete(want, ev.Path)
				}
				return len(want) == 0
			})
		}},
		{name: "there can be many watches at once, of one folder or of several", own: true, check: checkManyWatches},
		{name: "nothing is created twice", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", whole)
			s.probed(t, "many", "200", "a/b")
			count := map[string]int{}
			for _, ev := range w.mark(t, ".") {
				if ev.Op == primitives.OpCreate {
					count[ev.Path]++
				}
			}
			for p, n := range count {
				if n > 1 {
					t.Errorf("%s was created %d times", p, n)
				}
			}
		}},
		{name: "a renamed folder is one rename, and its files are watched on", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a/sub", "write", "a/sub/f", "x")
			w := s.watch(t, ".", whole)
			s.probed(t, "rename", "a", "z")
			ev := w.event(t, primitives.OpRename, "z")
			expect(t, "old name", ev.From, "a")
			expect(t, "directory", ev.Dir, true)
			s.probed(t, "append", "z/sub/f", "more")
			w.event(t, primitives.OpModify, "z/sub/f")
		}},
		{name: "a folder moved out is not watched any more", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "in/a", "write", "in/a/f", "x")
			w := s.watch(t, "in", whole)
			s.probed(t, "rename", "in/a", "out")
			w.event(t, primitives.OpRemove, "a")
			w.mark(t, "in")
			s.probed(t, "append", "out/f", "more", "write", "out/g", "")
			w.expectEvents(t, "in", "")
		}},
		{name: "a folder that goes takes its files along", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a/b", "write", "a/b/f", "x")
			w := s.watch(t, ".", whole)
			s.probed(t, "rm", "a")
			gone := map[string]bool{}
			for _, ev := range w.mark(t, ".") {
				if ev.Op == primitives.OpRemove {
					gone[ev.Path] = true
				}
			}
			expect(t, "removed", fmt.Sprint(gone), "map[a:true a/b:true a/b/f:true]")
		}},
	}
}

// manyWatches is more than the number of inotify instances that Linux allows a user.
const manyWatches = 200

// checkManyWatches opens many watches. Every second one watches the same folder.
func checkManyWatches(t testingT, s *sandbox) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := make(chan string, manyWatches)
	for i := range manyWatches {
		dir := fmt.Sprintf("dir-%d", i*(i%2))
		if err := s.Mkdir(ctx, s.in(dir), 0); err != nil {
			t.Fatalf("Mkdir: %v", err)
		}
		seq, err := s.Watch(ctx, s.in(dir), primitives.WatchOptions{})
		if err != nil {
			t.Fatalf("Watch %d: %v", i, err)
		}
		s.suite.strays.Go(func() {
			for ev, err := range seq {
				if err != nil {
					first <- fmt.Sprintf("watch %d: %v", i, err)
				} else {
					first <- string(ev.Op) + " " + ev.Path
				}
				return
			}
		})
	}
	for i := range manyWatches {
		if i == 0 || i%2 == 1 {
			s.write(t, fmt.Sprintf("dir-%d/f", i), "")
		}
	}
	s.within(t, "the first event of each watch", func() error {
		for range manyWatches {
			select {
			case got := <-first:
				if got != "create f" {
					return errors.New(got)
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
}
