package primitivestest

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// burstRules returns the rules that no change is lost silently.
func burstRules() []rule {
	return []rule{
		{name: "ten thousand files at once are complete, with an overflow at worst", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", primitives.WatchOptions{})
			s.probed(t, "many", "10000", "a")
			seen, overflow := map[string]bool{}, false
			complete := func(ev primitives.WatchEvent) bool {
				overflow = overflow || ev.Op == primitives.OpOverflow
				if strings.HasPrefix(ev.Path, "a/f") && (ev.Op == primitives.OpCreate || ev.Op == primitives.OpModify) {
					seen[ev.Path] = true
				}
				return len(seen) == 10_000
			}
			for _, ev := range w.mark(t, ".") {
				complete(ev)
			}
			if overflow && len(seen) < 10_000 {
				w.until(t, "ten thousand files", complete) // the differences may follow the mark
			}
			expect(t, "ten thousand files", len(seen), 10_000)
		}},
		{name: "a slow reader gets every event in the end", check: checkSlowWatcher},
	}
}

// checkSlowWatcher takes the first event only after all changes have happened.
func checkSlowWatcher(t testingT, s *sandbox) {
	w, collect := s.watchLate(t, ".", primitives.WatchOptions{})
	s.probed(t, "many", "20000", "a")
	s.probed(t, "rm", "a")
	s.probed(t, "write", "last", "")
	collect()
	exists := map[string]bool{}
	w.until(t, "the last file", func(ev primitives.WatchEvent) bool {
		switch ev.Op {
		case primitives.OpCreate, primitives.OpModify:
			exists[ev.Path] = true
		case primitives.OpRemove:
			delete(exists, ev.Path)
		}
		return exists["last"]
	})
	for p := range exists {
		if strings.HasPrefix(p, "a/") {
			t.Errorf("%s seems to exist", p)
		}
	}
}

// watchEndRules returns the rules about how a watch begins and ends.
func watchEndRules() []rule {
	whole := primitives.WatchOptions{}
	return []rule{
		{name: "watching a missing directory is fs.ErrNotExist", check: func(t testingT, s *sandbox) {
			_, err := s.Watch(t.Context(), s.in("nothing"), whole)
			expectError(t, "Watch", err, fs.ErrNotExist)
		}},
		{name: "watching a file is ErrNotDirectory", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "")
			_, err := s.Watch(t.Context(), s.in("f"), whole)
			expectError(t, "Watch", err, primitives.ErrNotDirectory)
		}},
		{name: "watching outside the workspace by a relative path is ErrPathEscape", check: func(t testingT, s *sandbox) {
			_, err := s.Watch(t.Context(), "..", whole)
			expectError(t, "Watch", err, primitives.ErrPathEscape)
		}},
		{name: "a watch whose directory goes ends with fs.ErrNotExist", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "d")
			w := s.watch(t, "d", whole)
			s.probed(t, "rm", "d")
			s.within(t, "end of the watch", func() error {
				if err := <-w.end; !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("want fs.ErrNotExist, got %v", err) //nolint:errorlint // only shown
				}
				return nil
			})
		}},
		{name: "a cancelled watch ends without an error", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", whole)
			w.mark(t, ".")
			w.stop()
			s.within(t, "end of the watch", func() error { return <-w.end })
		}},
		{name: "a watch ends when the loop is left", check: func(t testingT, s *sandbox) {
			seq, err := s.Watch(t.Context(), s.dir, whole)
			if err != nil {
				t.Fatalf("Watch: %v", err)
			}
			s.write(t, "f", "")
			s.within(t, "an event and the end of the loop", func() error {
				for _, err := range seq {
					return err
				}
				return errors.New("no event")
			})
		}},
		{name: "two watches of one directory both see everything", check: func(t testingT, s *sandbox) {
			a, b := s.watch(t, ".", whole), s.watch(t, ".", whole)
			s.probed(t, "write", "f", "")
			a.event(t, primitives.OpCreate, "f")
			b.event(t, primitives.OpCreate, "f")
		}},
	}
}

// watchFilterRules returns the rules about the options of Watch.
func watchFilterRules() []rule { return concat(patternFilterRules(), contentRules()) }

func patternFilterRules() []rule {
	return []rule{
		{name: "Shallow watches the direct children only", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "sub")
			w := s.watch(t, ".", primitives.WatchOptions{Shallow: true})
			s.probed(t, "write", "sub/f", "", "write", "f", "")
			w.expectEvents(t, ".", "create f")
		}},
		{name: "Include reports only what matches", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "src", "mkdir", "docs")
			w := s.watch(t, ".", primitives.WatchOptions{Include: []string{"*.go", "docs/**", "mark-*"}})
			s.probed(t, "write", "a.txt", "", "write", "a.go", "", "write", "src/b.go", "", "write", "src/c", "", "write", "docs/x", "")
			w.expectEvents(t, ".", "create a.go, create src/b.go, create docs/x")
		}},
		{name: "Include does not keep from looking into new folders", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", primitives.WatchOptions{Include: []string{"**/*.md"}})
			s.probed(t, "mkdir", "deep/er", "write", "deep/er/x.md", "")
			w.event(t, primitives.OpCreate, "deep/er/x.md")
		}},
		{name: "Ignore leaves out a name at any depth", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a")
			w := s.watch(t, ".", primitives.WatchOptions{Ignore: []string{"*.log"}})
			s.probed(t, "write", "x.log", "", "write", "a/y.log", "", "write", "a/f", "")
			w.expectEvents(t, ".", "create a/f")
		}},
		{name: "Ignore leaves out everything below a folder", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "src/node_modules/x")
			w := s.watch(t, ".", primitives.WatchOptions{Ignore: []string{"node_modules"}})
			s.probed(t, "write", "src/node_modules/x/f", "", "mkdir", "node_modules/y", "write", "node_modules/y/f", "", "write", "f", "")
			w.expectEvents(t, ".", "create f")
		}},
		{name: "Ignore wins over Include", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", primitives.WatchOptions{Include: []string{"*.go", "mark-*"}, Ignore: []string{"gen.go"}})
			s.probed(t, "write", "gen.go", "", "write", "a.go", "")
			w.expectEvents(t, ".", "create a.go")
		}},
		{name: "a pattern with a slash counts from the watched directory", check: func(t testingT, s *sandbox) {
			s.probed(t, "mkdir", "a/b", "mkdir", "b")
			w := s.watch(t, ".", primitives.WatchOptions{Ignore: []string{"b/*"}})
			s.probed(t, "write", "b/f", "", "write", "a/b/f", "")
			w.expectEvents(t, ".", "create a/b/f")
		}},
		{name: "a file renamed out of the filter is removed, into it created", check: func(t testingT, s *sandbox) {
			s.probed(t, "write", "a.go", "", "write", "b.tmp", "")
			w := s.watch(t, ".", primitives.WatchOptions{Ignore: []string{"*.tmp"}})
			s.probed(t, "rename", "a.go", "a.tmp", "rename", "b.tmp", "b.go")
			w.expectEvents(t, ".", "remove a.go, create b.go")
		}},
		{name: "a bad pattern of a watch is fs.ErrInvalid", check: func(t testingT, s *sandbox) {
			for _, opts := range []primitives.WatchOptions{{Include: []string{"["}}, {Ignore: []string{"a/[b"}}} {
				_, err := s.Watch(t.Context(), s.dir, opts)
				expectError(t, "Watch", err, errInvalid)
			}
		}},
	}
}

func contentRules() []rule {
	return []rule{
		{name: "content comes along if it is asked for", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			w := s.watch(t, ".", primitives.WatchOptions{MaxContent: 100})
			s.probed(t, "append", "f", " new")
			ev := w.until(t, "the new content", func(ev primitives.WatchEvent) bool { return ev.Path == "f" && string(ev.Content) == "old new" })
			expect(t, "omitted", ev.Omitted, "")
			expect(t, "size", ev.Size, int64(7))
		}},
		{name: "content that is too large is omitted, and the event says so", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "12345678")
			w := s.watch(t, ".", primitives.WatchOptions{MaxContent: 8})
			s.probed(t, "append", "f", "9")
			ev := w.event(t, primitives.OpModify, "f")
			expect(t, "omitted", ev.Omitted, primitives.OmittedTooLarge)
			expect(t, "content", string(ev.Content), "")
		}},
		{name: "no content comes unless it is asked for", check: func(t testingT, s *sandbox) {
			s.write(t, "f", "old")
			w := s.watch(t, ".", primitives.WatchOptions{})
			s.probed(t, "append", "f", "new")
			ev := w.event(t, primitives.OpModify, "f")
			expect(t, "content and reason", string(ev.Content)+string(ev.Omitted), "")
		}},
		{name: "debounce reports a burst of one file once, as it is in the end", check: func(t testingT, s *sandbox) {
			s.patiently(t, "one event", func(short time.Duration) bool {
				name := "f-" + short.String()
				w := s.watch(t, ".", primitives.WatchOptions{Debounce: short, MaxContent: 100})
				s.probed(t, "write", name, "", "append", name, "a", "append", name, "b", "append", name, "c")
				w.until(t, "all of the content", func(ev primitives.WatchEvent) bool { return ev.Path == name && string(ev.Content) == "abc" })
				events := 0
				for _, ev := range w.mark(t, ".") {
					if ev.Path == name {
						events++
					}
				}
				return events == 1
			})
		}},
		{name: "debounce reports nothing twice and nothing late for others", check: func(t testingT, s *sandbox) {
			w := s.watch(t, ".", primitives.WatchOptions{Debounce: 50 * time.Millisecond})
			s.probed(t, "write", "a", "", "write", "b", "")
			seen := eventText(w.mark(t, "."))
			expect(t, "a", strings.Count(seen, "create a"), 1)
			expect(t, "b", strings.Count(seen, "create b"), 1)
		}},
	}
}
