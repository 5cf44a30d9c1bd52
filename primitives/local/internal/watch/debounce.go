package watch

import (
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// maxPending bounds the paths that wait in a debouncer.
const maxPending = 1 << 16

// debouncer delays changes until their path has not changed for a while. With a zero delay it
// delays nothing.
type debouncer struct {
	delay   time.Duration
	pending map[string]*pending
	// order holds the pending changes by due time. A path that was changed again occurs more than
	// once; only the last occurrence counts.
	order []slot
}

type pending struct {
	change
	due time.Time
}

type slot struct {
	p   *pending
	due time.Time
}

// add stores changes and returns those to report now.
func (d *debouncer) add(changes []change, now time.Time) []change {
	if d.delay == 0 {
		return changes
	}
	var ready []change
	for _, c := range changes {
		switch c.op {
		case primitives.OpOverflow:
			ready = append(append(ready, d.all()...), c)
		case primitives.OpRename:
			ready = append(ready, d.rename(c, now)...)
		case primitives.OpCreate, primitives.OpModify, primitives.OpRemove:
			d.hold(c, now)
		}
	}
	for len(d.pending) > maxPending {
		ready = append(ready, d.first())
	}
	return ready
}

// rename returns the pending changes of both paths and then the rename. But if the old path was
// never reported, it turns the rename into the creation of the new path: this is how editors save.
func (d *debouncer) rename(c change, now time.Time) []change {
	if p := d.pending[c.from]; p != nil && p.op == primitives.OpCreate && !c.dir {
		delete(d.pending, c.from)
		op := primitives.OpCreate
		if q := d.pending[c.path]; q != nil && q.op != primitives.OpCreate {
			op = primitives.OpModify
		}
		d.hold(change{op: op, path: c.path}, now)
		return nil
	}
	var ready []change
	for _, s := range d.order {
		if d.current(s) && (touches(s.p.path, c.from) || touches(s.p.path, c.path)) {
			delete(d.pending, s.p.path)
			ready = append(ready, s.p.change)
		}
	}
	return append(ready, c)
}

func touches(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir) && path[len(dir)] == '/'
}

func (d *debouncer) hold(c change, now time.Time) {
	if d.pending == nil {
		d.pending = map[string]*pending{}
	}
	p := d.pending[c.path]
	if p == nil {
		p = &pending{change: c}
		d.pending[c.path] = p
	} else {
		p.change = merge(p.change, c)
	}
	p.due = now.Add(d.delay)
	d.order = append(d.order, slot{p, p.due})
}

// merge combines two successive changes into one.
func merge(a, b change) change {
	switch {
	case a.op == primitives.OpCreate && b.op == primitives.OpModify:
		b.op = primitives.OpCreate
	case a.op == primitives.OpRemove && b.op == primitives.OpCreate && !a.dir && !b.dir:
		b.op = primitives.OpModify
	}
	return b
}

// next returns when the next change is due, or the zero time if none is pending.
func (d *debouncer) next() time.Time {
	d.dropStale()
	if len(d.order) == 0 {
		return time.Time{}
	}
	return d.order[0].due
}

// due returns the changes whose delay is over.
func (d *debouncer) due(now time.Time) []change {
	var ready []change
	for d.dropStale(); len(d.order) > 0 && !d.order[0].due.After(now); d.dropStale() {
		ready = append(ready, d.first())
	}
	return ready
}

// all returns all pending changes.
func (d *debouncer) all() []change {
	var ready []change
	for d.dropStale(); len(d.order) > 0; d.dropStale() {
		ready = append(ready, d.first())
	}
	return ready
}

func (d *debouncer) first() change {
	d.dropStale()
	p := d.order[0].p
	d.order = d.order[1:]
	delete(d.pending, p.path)
	return p.change
}

// dropStale removes outdated occurrences from the front of order.
func (d *debouncer) dropStale() {
	for len(d.order) > 0 && !d.current(d.order[0]) {
		d.order = d.order[1:]
	}
}

func (d *debouncer) current(s slot) bool {
	return d.pending[s.p.path] == s.p && s.p.due.Equal(s.due)
}
