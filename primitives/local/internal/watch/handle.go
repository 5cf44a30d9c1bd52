package watch

import (
	"fmt"
	"io/fs"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
)

// pairWait is how long to wait for the second half of a rename after reading the first half. The
// kernel queues both halves in one system call of the program that renames, which may be preempted
// between them.
const pairWait = 50 * time.Millisecond

// clockSlack is how far the clock of file times, which ticks more coarsely, may be behind time.Now.
const clockSlack = 20 * time.Millisecond

// handle compares one change with the tree.
func (w *watcher) handle(ev raw) error {
	if ev.kind == rawOverflow {
		return w.overflow()
	}
	n := w.nodes[ev.wd]
	if n == nil || ev.kind == rawNone {
		return nil
	}
	switch ev.kind {
	case rawGone, rawEnd:
		if n == w.root {
			return fmt.Errorf("the watched directory went away: %w", fs.ErrNotExist)
		}
		if ev.kind == rawEnd {
			delete(w.nodes, ev.wd)
			n.wd = -1
		}
		return nil
	case rawFrom:
		return w.moved(n, ev)
	}
	if ev.name == "" || files.IsTemp(ev.name) {
		return nil
	}
	path := n.join(ev.name)
	if w.ignore.Match(path) {
		return nil
	}
	kid, known := n.kids[ev.name]
	switch ev.kind {
	case rawDelete:
		if known {
			w.detach(n, ev.name)
		}
	case rawTo:
		return w.arrived(n, ev)
	case rawCreate:
		if !known {
			return w.attach(n, ev.name, ev.dir)
		}
		if (kid != nil) != ev.dir {
			w.detach(n, ev.name)
			return w.attach(n, ev.name, ev.dir)
		}
		// A listing of the directory has found the name before the kernel's event was read.
	case rawModify:
		if !known {
			return w.appeared(n, ev.name)
		}
		w.emit(primitives.OpModify, path, kid != nil)
	}
	return nil
}

// appeared adds an unknown name that was changed, if it exists.
func (w *watcher) appeared(n *node, name string) error {
	st, err := w.lstat(n.join(name))
	if err != nil {
		return nil // removed again, which the kernel reports separately
	}
	return w.attach(n, name, isDir(&st))
}

// arrived handles a name that was moved here from outside the tree.
func (w *watcher) arrived(n *node, ev raw) error {
	kid, known := n.kids[ev.name]
	if !known {
		return w.attach(n, ev.name, ev.dir)
	}
	if kid == nil && !ev.dir {
		w.emit(primitives.OpModify, n.join(ev.name), false)
		return nil
	}
	if kid != nil && ev.dir && kid.wd >= 0 {
		if wd, err := w.number(kid.path()); err == nil && wd == kid.wd {
			return nil // an earlier listing has found it
		}
	}
	w.detach(n, ev.name)
	return w.attach(n, ev.name, ev.dir)
}

// moved handles a name that was moved away, within the tree or out of it.
func (w *watcher) moved(n *node, ev raw) error {
	to, err := w.partner(ev)
	if err != nil {
		return err
	}
	kid, known := n.kids[ev.name]
	into := w.nodes[to.wd]
	lost := into == nil || to.kind == rawNone || files.IsTemp(to.name) || w.ignore.Match(into.join(to.name))
	switch {
	case !known && lost:
		return nil
	case !known:
		// The name was ignored until now, or is a temporary file of ours that gets its final name.
		return w.arrived(into, to)
	case lost:
		w.detach(n, ev.name)
		return nil
	}
	from := n.join(ev.name)
	old, replaced := into.kids[to.name]
	delete(n.kids, ev.name)
	switch {
	case kid == nil:
		if replaced && old != nil {
			w.detach(into, to.name)
		}
		into.put(to.name, nil)
		w.renamed(from, into.join(to.name), false)
		return nil
	case replaced && kid.wd < 0 && old != nil && old.wd >= 0:
		// A listing has found the directory at its new place. It has taken over the watch and
		// reported the content.
		w.bury(kid, from)
		w.renamed(from, old.path(), true)
		return nil
	case replaced:
		w.detach(into, to.name)
	}
	return w.rehome(kid, into, to.name)
}

// partner removes the second half of a rename from the queued events and returns it. It waits up to
// pairWait for it.
func (w *watcher) partner(from raw) (raw, error) {
	until := from.read.Add(pairWait)
	for seen, over := 0, false; ; {
		for ; seen < len(w.raws); seen++ {
			if ev := w.raws[seen]; ev.kind == rawTo && ev.cookie == from.cookie {
				w.raws[seen].kind = rawNone
				return ev, nil
			}
		}
		if over {
			return raw{wd: -1}, nil
		}
		over = !time.Now().Before(until) // still check what has been read
		if err := w.read(until); err != nil {
			return raw{}, err
		}
	}
}

// overflow reports that changes were dropped, and finds them with a rescan.
func (w *watcher) overflow() error {
	w.queue = append(w.queue, change{op: primitives.OpOverflow})
	since := w.quiet.Add(-clockSlack)
	return w.rescan(w.root, "", &since)
}
