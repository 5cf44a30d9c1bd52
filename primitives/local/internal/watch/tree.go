package watch

import (
	"cmp"
	"maps"
	"slices"

	"github.com/agentenv-dev/agentenv/primitives"
)

// node is a known directory.
type node struct {
	parent *node // nil for the watched directory itself and for removed directories
	name   string
	wd     int // -1 means not watched
	// kids are the names in the directory that are not ignored. The node is nil for a name that is
	// not a directory.
	kids map[string]*node
}

func newNode(parent *node, name string) *node { return &node{parent: parent, name: name, wd: -1} }

// path returns the slash path relative to the watched directory; "" for that directory itself.
func (n *node) path() string {
	if n.parent == nil {
		return ""
	}
	return n.parent.join(n.name)
}

// join returns the path of a name in the directory.
func (n *node) join(name string) string {
	if n.parent == nil {
		return name
	}
	return n.path() + "/" + name
}

func (n *node) put(name string, kid *node) {
	if n.kids == nil {
		n.kids = map[string]*node{}
	}
	n.kids[name] = kid
}

// sorted returns the known names in order.
func (n *node) sorted() []string { return slices.Sorted(maps.Keys(n.kids)) }

// emit queues a change if Include matches its path.
func (w *watcher) emit(op primitives.WatchOp, path string, dir bool) {
	if w.visible(path) {
		w.queue = append(w.queue, change{op: op, path: path, dir: dir})
	}
}

func (w *watcher) visible(path string) bool {
	return w.include.Empty() || w.include.Match(path)
}

// attach adds a new name with everything below it.
func (w *watcher) attach(parent *node, name string, dir bool) error {
	path := parent.join(name)
	if w.ignore.Match(path) {
		return nil
	}
	w.emit(primitives.OpCreate, path, dir)
	if !dir {
		parent.put(name, nil)
		return nil
	}
	n := newNode(parent, name)
	parent.put(name, n)
	if w.cfg.Options.Shallow {
		return nil
	}
	if err := w.grow(n); err != nil {
		return err
	}
	w.announce(n, path)
	return nil
}

// announce reports everything below a directory as created.
func (w *watcher) announce(n *node, path string) {
	for _, name := range n.sorted() {
		kid := n.kids[name]
		w.emit(primitives.OpCreate, path+"/"+name, kid != nil)
		if kid != nil {
			w.announce(kid, path+"/"+name)
		}
	}
}

// detach removes a name. It reports everything below it, and then the name itself, as removed.
func (w *watcher) detach(parent *node, name string) {
	path := parent.join(name)
	n := parent.kids[name]
	delete(parent.kids, name)
	if n != nil {
		w.bury(n, path)
	}
	w.emit(primitives.OpRemove, path, n != nil)
}

func (w *watcher) bury(n *node, path string) {
	for _, name := range slices.Backward(n.sorted()) {
		kid := n.kids[name]
		if kid != nil {
			w.bury(kid, path+"/"+name)
		}
		w.emit(primitives.OpRemove, path+"/"+name, kid != nil)
	}
	w.unwatch(n)
	n.kids = nil
}

func (w *watcher) unwatch(n *node) {
	if n.wd >= 0 && w.nodes[n.wd] == n {
		delete(w.nodes, n.wd)
		w.src.remove(n.wd)
	}
	n.wd = -1
}

// rehome moves a known directory to a new place in the tree.
func (w *watcher) rehome(n, parent *node, name string) error {
	old := n.path()
	n.parent, n.name = parent, name
	parent.put(name, n)
	path := n.path()
	reported := w.renamed(old, path, true)
	if w.include.Empty() && w.ignore.Empty() {
		return nil
	}
	w.recheck(n, old, path, reported)
	if w.ignore.Empty() || w.cfg.Options.Shallow {
		return nil
	}
	return w.rescan(n, path, nil) // finds what was ignored at the old path
}

// renamed reports a rename according to which of its paths are visible. It returns true if it
// reported a rename.
func (w *watcher) renamed(from, to string, dir bool) bool {
	switch was, is := w.visible(from), w.visible(to); {
	case was && is:
		w.queue = append(w.queue, change{op: primitives.OpRename, path: to, from: from, dir: dir})
		return true
	case was:
		w.emit(primitives.OpRemove, from, dir)
	case is:
		w.emit(primitives.OpCreate, to, dir)
	}
	return false
}

// recheck compares how the patterns match the names below a directory before and after it was
// moved. implied says that the directory's own rename covers the names that are visible at both
// paths.
func (w *watcher) recheck(n *node, old, path string, implied bool) {
	for _, name := range n.sorted() {
		kid := n.kids[name]
		from, to := old+"/"+name, path+"/"+name
		if w.ignore.Match(to) {
			delete(n.kids, name)
			if kid != nil {
				w.bury(kid, from)
			}
			w.emit(primitives.OpRemove, from, kid != nil)
			continue
		}
		if !implied || !w.visible(from) || !w.visible(to) {
			w.renamed(from, to, kid != nil)
		}
		if kid != nil {
			w.recheck(kid, from, to, implied)
		}
	}
}

// compareDirents orders a listing.
func compareDirents(a, b dirent) int { return cmp.Compare(a.name, b.name) }
