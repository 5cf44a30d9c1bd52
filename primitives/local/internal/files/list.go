package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// List implements primitives.Files.
func (f *FS) List(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	infos, err := f.list(ctx, dir, opts)
	return infos, f.fail("list", dir, err)
}

func (f *FS) list(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	depth, err := listDepth(opts)
	if err != nil {
		return nil, err
	}
	w, err := f.walk(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer w.close()
	w.strict = opts.Strict
	list := primitives.Listing{Limit: opts.Limit, Infos: []primitives.FileInfo{}}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e, ok, err := w.next()
		if !ok {
			return list.Infos, err
		}
		if e.isDir() && depth != w.depth() {
			w.enter(e)
		}
		if opts.Pattern != "" && !doublestar.MatchUnvalidated(opts.Pattern, e.path) {
			continue
		}
		info, err := describe(e.dir, e.name, e.path, &e.stat)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := list.Add(info); err != nil {
			return list.Infos, err
		}
	}
}

// listDepth returns how deep to look, -1 for no limit.
func listDepth(opts primitives.ListOptions) (int, error) {
	switch {
	case opts.Limit < 0:
		return 0, invalid("Limit is negative; zero means all")
	case opts.Depth < -1:
		return 0, invalid("Depth is %d; -1 means everything", opts.Depth)
	case opts.Pattern != "" && !doublestar.ValidatePattern(opts.Pattern):
		return 0, invalid("the pattern %q is malformed", opts.Pattern)
	case opts.Depth != 0:
		return opts.Depth, nil
	case strings.Contains(opts.Pattern, "**"):
		return -1, nil
	}
	return strings.Count(opts.Pattern, "/") + 1, nil
}

// walker visits everything below a directory, sorted by path byte by byte. It never follows a link.
type walker struct {
	stack  []level
	strict bool // a directory that cannot be read is an error
}

// level is one open directory of a walk.
type level struct {
	fd     int
	prefix string // of the paths in it
	items  []item
	pos    int // of the next item
}

// item is a name that is still to be visited. A directory occurs twice: it sorts by its name, and
// its content by the name with a slash, because "a.txt" comes between "a" and "a/b".
type item struct {
	name string
	sub  bool // visit the content of the directory
}

func (i item) compare(o item) int {
	n := min(len(i.name), len(o.name))
	if c := cmp.Compare(i.name[:n], o.name[:n]); c != 0 {
		return c
	}
	return cmp.Compare(i.rest(n), o.rest(n))
}

func (i item) rest(n int) string {
	if i.sub {
		return i.name[n:] + "/"
	}
	return i.name[n:]
}

// entry is what a walk has found. dir is the open directory that holds it, valid until the next
// call of next.
type entry struct {
	dir  int
	name string
	path string
	stat unix.Stat_t
}

func (e *entry) isDir() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// walk starts a walk below dir. It follows links in dir itself.
func (f *FS) walk(ctx context.Context, dir string) (*walker, error) {
	if err := f.begin(ctx, cmp.Or(dir, ".")); err != nil {
		return nil, err
	}
	t, err := f.tree(dir)
	if err != nil {
		return nil, err
	}
	defer t.close()
	fd, err := t.openDir(cmp.Or(dir, "."), false)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	w := &walker{}
	return w, w.push(fd, ".", "")
}

// push opens a directory and reads its names.
func (w *walker) push(dir int, name, prefix string) error {
	fd, err := openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	names, err := readNames(fd)
	if err != nil {
		unix.Close(fd)
		return err
	}
	// Hide incomplete files, also those of programs that have died.
	names = slices.DeleteFunc(names, IsTemp)
	slices.Sort(names)
	items := make([]item, len(names))
	for i, n := range names {
		items[i].name = n
	}
	w.stack = append(w.stack, level{fd: fd, prefix: prefix, items: items})
	return nil
}

// depth returns how many levels below the start the last entry is.
func (w *walker) depth() int { return len(w.stack) }

// enter makes the walk visit the content of a directory that next just returned.
func (w *walker) enter(e *entry) {
	top := &w.stack[len(w.stack)-1]
	sub := item{name: e.name, sub: true}
	i, _ := slices.BinarySearchFunc(top.items[top.pos:], sub, item.compare)
	// The slot of the entry itself is free now.
	copy(top.items[top.pos-1:], top.items[top.pos:top.pos+i])
	top.pos--
	top.items[top.pos+i] = sub
}

// next returns the next entry. It returns false at the end and with an error.
func (w *walker) next() (*entry, bool, error) {
	for len(w.stack) > 0 {
		top := &w.stack[len(w.stack)-1]
		if top.pos == len(top.items) {
			unix.Close(top.fd)
			w.stack = w.stack[:len(w.stack)-1]
			continue
		}
		it := top.items[top.pos]
		top.pos++
		if it.sub {
			err := w.push(top.fd, it.name, top.prefix+it.name+"/")
			if err != nil && (!skippable(err) || w.strict && isDenied(err)) {
				return nil, false, fmt.Errorf("%s: %w", top.prefix+it.name, err)
			}
			continue
		}
		st, err := lstatat(top.fd, it.name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		return &entry{dir: top.fd, name: it.name, path: top.prefix + it.name, stat: st}, true, nil
	}
	return nil, false, nil
}

// skippable reports whether a walk skips a directory with this error: it cannot be read, or no
// longer exists.
func skippable(err error) bool {
	return isDenied(err) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func isDenied(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

func (w *walker) close() {
	for _, l := range w.stack {
		unix.Close(l.fd)
	}
	w.stack = nil
}
