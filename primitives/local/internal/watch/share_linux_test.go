package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestWatchesShareTheInstanceOfTheProcess(t *testing.T) {
	before := openFiles(t)
	dir := t.TempDir()
	var all []*watched
	for range 150 { // more than a user's limit of instances
		all = append(all, begin(t, dir, primitives.WatchOptions{}))
	}
	if now := openFiles(t); now > before+8 { // the poller opens some
		t.Errorf("%d files are open, %d were before", now, before)
	}
	// Each watch sees the events after its start, whatever the others do.
	for i, w := range all {
		put(t, filepath.Join(dir, fmt.Sprint(i)), "")
		for j := range i + 1 {
			ev, err, _ := w.next()
			if want := fmt.Sprint(j); err != nil || ev.Op != primitives.OpCreate || ev.Path != want {
				t.Fatalf("watch %d got %+v, %v, want the creation of %s", i, ev, err, want)
			}
		}
		w.stop()
	}
}

func TestAWatchReportsNoEarlierChanges(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/f", "")
	first := begin(t, dir, primitives.WatchOptions{})
	for i := range 200 {
		must(t, os.Remove(dir+"/f"))
		put(t, dir+"/f", fmt.Sprint(i))
		begin(t, dir, primitives.WatchOptions{}).want()
		must(t, os.Remove(filepath.Join(dir, marker)))
	}
	first.stop()
}

func TestAWatchThatNobodyReadsOverflowsAlone(t *testing.T) {
	busy, calm := t.TempDir(), t.TempDir()
	slow := begin(t, busy, primitives.WatchOptions{})
	quick := begin(t, calm, primitives.WatchOptions{})
	for i := range maxQueued { // two changes each
		put(t, filepath.Join(busy, fmt.Sprintf("f%d", i%100)), fmt.Sprint(i))
		if i%1000 == 0 {
			put(t, filepath.Join(calm, fmt.Sprint(i)), "")
			if ev, err, _ := quick.next(); err != nil || ev.Op != primitives.OpCreate {
				t.Fatalf("the other watch got %+v, %v", ev, err)
			}
		}
	}
	got := slices.Compact(brief(slow.until()))
	if !slices.Contains(got, "overflow ") {
		t.Errorf("%d events, and no overflow", len(got))
	}
	for _, ev := range brief(quick.until()) {
		if ev == "overflow " {
			t.Error("the other watch overflowed, too")
		}
	}
}
