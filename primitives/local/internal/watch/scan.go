package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/beneath"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
)

// fileID identifies a file.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} } //nolint:unconvert // only told apart

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// dirent is a name in a directory.
type dirent struct {
	name string
	dir  bool
}

// plant starts the watch. After it returns no change is missed.
func (w *watcher) plant(ctx context.Context) error {
	fd, err := unix.Open(w.cfg.Dir, beneath.PathOnly|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	unix.Close(fd)
	if err != nil {
		return err
	}
	w.rootID = idOf(&st)
	w.root = newNode(nil, "")
	w.quiet = time.Now()
	defer w.closeRoot()
	if err := w.grow(w.root); err != nil {
		return err
	}
	if w.root.wd < 0 {
		return unix.EACCES
	}
	return ctx.Err()
}

// grow watches and lists a new directory and everything below it, without reporting anything.
// Directories that vanish or cannot be read stay empty.
func (w *watcher) grow(start *node) error {
	if w.cfg.Options.Shallow && start != w.root {
		return nil
	}
	root, err := w.openRoot()
	if err != nil {
		return err
	}
	g := grower{w: w, root: root, todo: []*node{start}}
	g.more.L = &g.mu
	// Handle the first directories without helpers, which are not worth starting for a few.
	var s scanner
	for range 16 {
		if !g.one(&s, false) {
			return g.err
		}
	}
	var helpers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 8) {
		helpers.Go(func() {
			var s scanner
			for g.one(&s, true) {
			}
		})
	}
	helpers.Wait()
	return g.err
}

// grower is one call of grow, shared by its helpers.
type grower struct {
	w    *watcher
	root int

	mu   sync.Mutex
	more sync.Cond
	todo []*node
	busy int
	err  error
}

// one handles one directory. It returns false when no directory is left.
func (g *grower) one(s *scanner, wait bool) bool {
	g.mu.Lock()
	for wait && len(g.todo) == 0 && g.busy > 0 {
		g.more.Wait()
	}
	if len(g.todo) == 0 || g.err != nil {
		g.more.Broadcast()
		g.mu.Unlock()
		return false
	}
	n := g.todo[len(g.todo)-1]
	g.todo = g.todo[:len(g.todo)-1]
	g.busy++
	g.mu.Unlock()

	path := n.path()
	wd, list, err := s.scan(g.w, g.root, path)
	var dirs []*node
	if err == nil {
		dirs = g.w.fill(n, path, list)
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.more.Broadcast()
	g.busy--
	if err != nil {
		if !g.w.passable(err, n == g.w.root) {
			g.err = err
		}
		return true
	}
	g.w.adopt(n, wd)
	if !g.w.cfg.Options.Shallow {
		g.todo = append(g.todo, dirs...)
	}
	return true
}

// fill stores a listing in a new directory and returns the subdirectories.
func (w *watcher) fill(n *node, path string, list []dirent) []*node {
	var dirs []*node
	n.kids = make(map[string]*node, len(list))
	if path != "" {
		path += "/"
	}
	for _, e := range list {
		if files.IsTemp(e.name) || !w.ignore.Empty() && w.ignore.Match(path+e.name) {
			continue
		}
		var kid *node
		if e.dir {
			kid = newNode(n, e.name)
			dirs = append(dirs, kid)
		}
		n.kids[e.name] = kid
	}
	return dirs
}

// adopt records that wd watches n. A listing may find a moved directory at its new place while the
// tree still has it at the old one: both have the same watch, which adopt gives to the new place.
func (w *watcher) adopt(n *node, wd int) {
	if other := w.nodes[wd]; other != nil && other != n {
		other.wd = -1
	}
	if n.wd >= 0 && n.wd != wd && w.nodes[n.wd] == n {
		delete(w.nodes, n.wd)
	}
	n.wd = wd
	w.nodes[wd] = n
}

// passable reports whether to skip a directory with this error: it is gone, cannot be read, or is
// nested so deep that no program could name it.
func (w *watcher) passable(err error, root bool) bool {
	if root {
		return false
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENAMETOOLONG) || errors.Is(err, primitives.ErrPathEscape)
}

// rescan compares a directory and everything below it with the tree, and reports the differences.
// It reports files changed after since as modified; if since is nil it reports no modifications.
func (w *watcher) rescan(n *node, path string, since *time.Time) error {
	root, err := w.openRoot()
	if err != nil {
		return err
	}
	var s scanner
	wd, list, err := s.scan(w, root, path)
	if err != nil {
		if w.passable(err, n == w.root) {
			return nil
		}
		return err
	}
	w.adopt(n, wd)
	there := make(map[string]bool, len(list))
	for _, e := range list {
		there[e.name] = e.dir
	}
	for _, name := range n.sorted() {
		if dir, ok := there[name]; !ok || dir != (n.kids[name] != nil) {
			w.detach(n, name)
		}
	}
	slices.SortFunc(list, compareDirents)
	for _, e := range list {
		if files.IsTemp(e.name) {
			continue
		}
		kid, known := n.kids[e.name]
		switch {
		case !known:
			err = w.attach(n, e.name, e.dir)
		case kid == nil && since != nil:
			err = w.recheckFile(n.join(e.name), *since)
		case kid != nil && !w.cfg.Options.Shallow:
			err = w.rescan(kid, kid.path(), since)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) recheckFile(path string, since time.Time) error {
	st, err := w.lstat(path)
	if err != nil {
		return nil // removed meanwhile, which the kernel reports
	}
	changed := time.Unix(int64(st.Ctim.Sec), int64(st.Ctim.Nsec)) //nolint:unconvert // narrower on other platforms
	if changed.After(since) {
		w.emit(primitives.OpModify, path, false)
	}
	return nil
}

// number returns the watch descriptor of the directory that is at path now.
func (w *watcher) number(path string) (int, error) {
	root, err := w.openRoot()
	if err != nil {
		return -1, err
	}
	var s scanner
	wd, _, err := s.scan(w, root, path)
	return wd, err
}

// scanner watches and lists directories. It reuses its buffer.
type scanner struct{ buf []byte }

// scan watches a directory and then lists it: what is made in between is in the list, or reported
// by the kernel, or both.
func (s *scanner) scan(w *watcher, root int, path string) (int, []dirent, error) {
	fd, err := (beneath.Root{FD: root}).OpenDir(path, beneath.Options{NoLinks: true, List: true})
	if err != nil {
		return -1, nil, err
	}
	defer unix.Close(fd)
	abs := w.cfg.Dir
	if path != "" {
		abs += "/" + path
	}
	wd, err := w.src.add(fd, abs)
	if err != nil {
		return -1, nil, err
	}
	list, err := s.list(fd)
	return wd, list, err
}

// openRoot opens the watched directory until closeRoot. The directory must not stay open while the
// watcher waits, because the kernel does not report the removal of a directory that a process has
// open.
func (w *watcher) openRoot() (int, error) {
	if w.dir > 0 {
		return w.dir, nil
	}
	fd, err := unix.Open(w.cfg.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || idOf(&st) != w.rootID {
		unix.Close(fd)
		return -1, fmt.Errorf("another directory has taken the place of the watched one: %w", fs.ErrNotExist)
	}
	w.dir = fd
	return fd, nil
}

func (w *watcher) closeRoot() {
	if w.dir > 0 {
		unix.Close(w.dir)
		w.dir = 0
	}
}
