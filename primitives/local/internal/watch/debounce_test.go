package watch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestDebouncerMergesWhatBelongsTogether(t *testing.T) {
	const create, modify, remove = primitives.OpCreate, primitives.OpModify, primitives.OpRemove
	rename := func(from, to string) change { return change{op: primitives.OpRename, from: from, path: to} }
	on := func(op primitives.WatchOp, path string) change { return change{op: op, path: path} }
	for _, c := range []struct {
		rule       string
		in         []change
		atOnce     []string
		whenItRest []string
	}{
		{"created and written", []change{on(create, "a"), on(modify, "a"), on(modify, "a")}, nil, []string{"create a"}},
		{"written often", []change{on(modify, "a"), on(modify, "b"), on(modify, "a")}, nil, []string{"modify b", "modify a"}},
		{"removed and made again", []change{on(remove, "a"), on(create, "a")}, nil, []string{"modify a"}},
		{"made and removed", []change{on(create, "a"), on(remove, "a")}, nil, []string{"remove a"}},
		{"written and removed", []change{on(modify, "a"), on(remove, "a")}, nil, []string{"remove a"}},
		{"saved over another", []change{on(modify, "a"), on(create, "a.tmp"), rename("a.tmp", "a")}, nil, []string{"modify a"}},
		{"made under another name", []change{on(create, "a.tmp"), rename("a.tmp", "a")}, nil, []string{"create a"}},
		{"renamed", []change{on(modify, "a"), on(modify, "c"), rename("a", "b"), on(modify, "b")}, []string{"modify a", "rename a b"}, []string{"modify c", "modify b"}},
		{"below a renamed directory", []change{on(modify, "d/a"), on(modify, "dd"), rename("d", "e")}, []string{"modify d/a", "rename d e"}, []string{"modify dd"}},
		{"overflow", []change{on(modify, "a"), on(primitives.OpOverflow, ""), on(create, "b")}, []string{"modify a", "overflow "}, []string{"create b"}},
	} {
		d := debouncer{delay: time.Second}
		now := time.Unix(1000, 0)
		var atOnce []change
		for i, ch := range c.in {
			atOnce = append(atOnce, d.add([]change{ch}, now.Add(time.Duration(i)))...)
		}
		if early := d.due(now.Add(time.Second - 1)); len(early) > 0 {
			t.Errorf("%s: too early: %v", c.rule, early)
		}
		if len(c.whenItRest) > 0 && d.next().Before(now.Add(time.Second)) {
			t.Errorf("%s: due at %v", c.rule, d.next())
		}
		rest := d.due(now.Add(2 * time.Second))
		if !slices.Equal(words(atOnce), c.atOnce) || !slices.Equal(words(rest), c.whenItRest) {
			t.Errorf("%s: at once %q, then %q", c.rule, words(atOnce), words(rest))
		}
		if !d.next().IsZero() || len(d.pending) > 0 || len(d.order) > 0 {
			t.Errorf("%s: something is left", c.rule)
		}
	}
}

func TestDebouncerIsBounded(t *testing.T) {
	d := debouncer{delay: time.Hour}
	ready := 0
	for i := range maxPending + 10 {
		ready += len(d.add([]change{{op: primitives.OpCreate, path: fmt.Sprint(i)}}, time.Unix(0, int64(i))))
	}
	if ready != 10 || len(d.pending) != maxPending {
		t.Errorf("%d reported, %d pending", ready, len(d.pending))
	}
}

func words(changes []change) []string {
	var out []string
	for _, c := range changes {
		if c.from != "" {
			out = append(out, fmt.Sprintf("%s %s %s", c.op, c.from, c.path))
		} else {
			out = append(out, fmt.Sprintf("%s %s", c.op, c.path))
		}
	}
	return out
}
