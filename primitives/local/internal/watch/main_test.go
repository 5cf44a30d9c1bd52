package watch

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testleak"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestMain(m *testing.M) { testleak.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// marker is the file whose creation tells a test that it has seen all earlier events.
const marker = "zz-marker"

// watched is one watch of a test.
type watched struct {
	t    testing.TB
	dir  string
	next func() (primitives.WatchEvent, error, bool)
	stop func()
}

func config(dir string, opts primitives.WatchOptions) Config {
	return Config{Backend: "local", Dir: dir, Name: ".", Options: opts}
}

// begin watches a directory until the test ends.
func begin(t testing.TB, dir string, opts primitives.WatchOptions) *watched {
	t.Helper()
	return beginWith(t, t.Context(), config(dir, opts), newSource)
}

//nolint:revive // a test's context comes second
func beginWith(t testing.TB, ctx context.Context, cfg Config, open func() (source, error)) *watched {
	t.Helper()
	w, err := start(ctx, cfg, open)
	must(t, err)
	next, stop := iter.Pull2(w.events(ctx))
	t.Cleanup(stop)
	return &watched{t: t, dir: cfg.Dir, next: next, stop: stop}
}

// until makes the marker and returns the events before it.
func (w *watched) until() []primitives.WatchEvent {
	w.t.Helper()
	name := filepath.Join(w.dir, marker)
	must(w.t, os.WriteFile(name, nil, 0o644))
	var events []primitives.WatchEvent
	for {
		ev, err, ok := w.next()
		if err != nil || !ok {
			w.t.Fatalf("the watch ended: %v, after %s", err, brief(events))
		}
		if ev.Path == marker {
			return events
		}
		events = append(events, ev)
	}
}

// want checks the events up to the marker. A trailing slash marks directories; repeated
// modifications count once.
func (w *watched) want(want ...string) {
	w.t.Helper()
	got := slices.Compact(brief(w.until()))
	if !slices.Equal(got, want) {
		w.t.Errorf("got events\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func brief(events []primitives.WatchEvent) []string {
	out := []string{}
	for _, ev := range events {
		s := fmt.Sprintf("%s %s", ev.Op, ev.Path)
		if ev.From != "" {
			s = fmt.Sprintf("%s %s -> %s", ev.Op, ev.From, ev.Path)
		}
		if ev.Dir {
			s += "/"
		}
		out = append(out, s)
	}
	return out
}

func put(t testing.TB, name, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.WriteFile(name, []byte(content), 0o644))
}

func openFiles(t testing.TB) int {
	t.Helper()
	// The runtime opens files of its own with the first pipe.
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}
