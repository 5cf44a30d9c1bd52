// Package beneath opens directories below a root that a hostile process may be changing at the same
// time. It keeps the relative paths of a sandbox inside its workspace.
//
// It never checks a name first and uses it later: every step is an openat on the directory that the
// step before it opened, without following links, and the caller gets the open directory. If
// another process swaps a part of the path for a link meanwhile, this changes which directory
// inside the root is opened, or fails, but never leads out.
package beneath

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	maxPath  = 4096  // the kernel's PATH_MAX
	maxLinks = 40    // the kernel's limit
	maxSteps = 20000 // each ".." walks from the root again
)

// Root is the directory that no path may leave.
type Root struct {
	// FD is the open directory. The caller closes it.
	FD int
	// Names are the absolute paths of the root that a symbolic link may use. A link to any other
	// absolute path leads out.
	Names []string
}

// Options change how a directory is opened. The zero value follows links inside the root and makes
// no directories.
type Options struct {
	// Mkdir makes a missing directory in the open directory; nil means that none is made.
	Mkdir func(dir int, name string) error
	// NoLinks refuses every symbolic link with ENOTDIR.
	NoLinks bool
	// List opens the directory for listing, which needs permission to read it. Otherwise the
	// directory can only be used as a step in a path.
	List bool
}

// OpenDir opens the directory at the slash path rel for use as the start of
// further *at calls. Errors are primitives.ErrPathEscape and bare errnos.
func (r Root) OpenDir(rel string, opts Options) (int, error) {
	fd, _, err := r.open(rel, opts, false)
	return fd, err
}

// Locate is OpenDir that also returns the path of the directory relative to the root, without links
// and "..". The path of the root itself is ".".
func (r Root) Locate(rel string, opts Options) (fd int, resolved string, err error) {
	return r.open(rel, opts, true)
}

func (r Root) open(rel string, opts Options, locate bool) (int, string, error) {
	if len(rel) >= maxPath {
		return -1, "", unix.ENAMETOOLONG
	}
	if !locate {
		// One system call is enough in the usual case. After any error the walk finds the cause.
		if fd, err := openFast(r.FD, rel, opts); err == nil {
			return fd, "", nil
		}
	}
	w := walk{root: r, opts: opts, rest: split(rel), fd: -1}
	fd, err := w.run()
	if err == nil && opts.List {
		place := fd
		fd, err = openDirAt(place, ".", unix.O_RDONLY)
		unix.Close(place)
	}
	if err != nil {
		return -1, "", err
	}
	if len(w.names) == 0 {
		return fd, ".", nil
	}
	return fd, strings.Join(w.names, "/"), nil
}

// Target turns the target of a symbolic link at dir/name into a path relative to
// the root; dir is the path by which the link's directory was opened.
func (r Root) Target(dir, target string) (string, error) {
	if !strings.HasPrefix(target, "/") {
		return dir + "/" + target, nil
	}
	for _, n := range r.Names {
		if below, ok := strings.CutPrefix(target, strings.TrimRight(n, "/")); ok && (below == "" || below[0] == '/') {
			return "./" + below, nil
		}
	}
	return "", primitives.ErrPathEscape
}

// walk opens a path component by component, from the root.
type walk struct {
	root  Root
	opts  Options
	rest  []string // components that are not opened yet
	names []string // real directories between the root and fd
	fd    int      // -1 means the root itself
	links int
}

func (w *walk) run() (int, error) {
	for steps := 0; len(w.rest) > 0; steps++ {
		if steps > maxSteps {
			w.restart(nil)
			return -1, unix.ENAMETOOLONG
		}
		name := w.rest[0]
		w.rest = w.rest[1:]
		if err := w.step(name); err != nil {
			w.restart(nil)
			return -1, err
		}
	}
	if w.fd >= 0 {
		return w.fd, nil
	}
	return openDirAt(w.root.FD, ".", PathOnly)
}

func (w *walk) step(name string) error {
	if name == ".." {
		if len(w.names) == 0 {
			return primitives.ErrPathEscape
		}
		// The parent of an open directory may have been moved out of the root since it was opened,
		// so the kernel must not resolve "..".
		w.restart(append(slices.Clone(w.names[:len(w.names)-1]), w.rest...))
		return nil
	}
	fd, err := openDirAt(w.at(), name, PathOnly)
	switch {
	case err == nil:
		w.enter(fd, name)
		return nil
	case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		return w.link(name)
	case errors.Is(err, unix.ENOENT) && w.escapes():
		return primitives.ErrPathEscape
	case errors.Is(err, unix.ENOENT) && w.opts.Mkdir != nil:
		if err := w.opts.Mkdir(w.at(), name); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		fd, err := openDirAt(w.at(), name, PathOnly)
		if err != nil {
			return err
		}
		w.enter(fd, name)
		return nil
	}
	return err
}

// escapes reports whether the path leads out of the root although its next name is missing. It
// drops that name together with the ".." that leads back from it.
func (w *walk) escapes() bool {
	depth := 1
	for i, name := range w.rest {
		if name == ".." {
			depth--
		} else {
			depth++
		}
		if depth > 0 {
			continue
		}
		back := walk{root: w.root, opts: w.opts, rest: append(slices.Clone(w.names), w.rest[i+1:]...), fd: -1, links: w.links}
		back.opts.Mkdir = nil
		fd, err := back.run()
		if err == nil {
			unix.Close(fd)
		}
		return errors.Is(err, primitives.ErrPathEscape)
	}
	return false
}

// link continues at the target of the symbolic link name.
func (w *walk) link(name string) error {
	target, err := Readlink(w.at(), name)
	switch {
	case w.opts.NoLinks:
		return unix.ENOTDIR
	case errors.Is(err, unix.EINVAL) && changing(w.at(), name):
		w.rest = append([]string{name}, w.rest...) // it was a link a moment ago: look again
		return nil
	case errors.Is(err, unix.EINVAL):
		return unix.ENOTDIR
	case err != nil:
		return err
	}
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	if !strings.HasPrefix(target, "/") {
		w.rest = append(split(target), w.rest...)
		return nil
	}
	inside, err := w.root.Target("", target)
	if err != nil {
		return err
	}
	w.restart(append(split(inside), w.rest...))
	return nil
}

func (w *walk) at() int {
	if w.fd >= 0 {
		return w.fd
	}
	return w.root.FD
}

func (w *walk) enter(fd int, name string) {
	if w.fd >= 0 {
		unix.Close(w.fd)
	}
	w.fd = fd
	w.names = append(w.names, name)
}

func (w *walk) restart(rest []string) {
	if w.fd >= 0 {
		unix.Close(w.fd)
	}
	w.fd, w.names, w.rest = -1, nil, rest
}

// split returns the components of a path that change the directory.
func split(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(name string) bool { return name == "" || name == "." })
}

// Readlink returns the target of the symbolic link name in the open directory. The error is EINVAL
// if name is not a link.
func Readlink(dir int, name string) (string, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return "", err
		}
		if n < size {
			return string(buf[:n]), nil
		}
	}
}

// changing reports whether name, which was neither a directory nor a link before, is a directory or
// a link now.
func changing(dir int, name string) bool {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false
	}
	kind := st.Mode & unix.S_IFMT
	return kind == unix.S_IFDIR || kind == unix.S_IFLNK
}

func openDirAt(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
