// Package beneath opens directories below a root that a hostile process may be
// changing at the same time. It is what keeps the relative paths of a sandbox
// inside its workspace.
//
// A name is never checked first and used later: every step is an openat on the
// directory that the step before it opened, without following links, and what
// the caller gets is the open directory. Swapping a part of the path for a link
// while it is walked therefore changes which directory inside the root is
// opened, or fails, but never leads out.
package beneath

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

const (
	maxPath  = 4096  // as the kernel's PATH_MAX
	maxLinks = 40    // as the kernel's
	maxSteps = 20000 // each ".." walks from the root again
)

// Root is the directory that nothing may leave.
type Root struct {
	// FD is the open directory. It stays the caller's to close.
	FD int
	// Names are the absolute paths by which a symbolic link may name the root.
	// A link to an absolute path below none of them leads out.
	Names []string
}

// Options change how a directory is opened. The zero value follows links inside
// the root and makes nothing.
type Options struct {
	// Mkdir makes a missing directory in the open directory; nil makes none.
	Mkdir func(dir int, name string) error
	// NoLinks refuses every symbolic link with ENOTDIR.
	NoLinks bool
	// List opens the directory so that it can be listed, which takes the
	// permission to read it. Otherwise it can only be gone through.
	List bool
}

// OpenDir opens the directory at the slash path rel for use as the start of
// further *at calls. Errors are primitives.ErrPathEscape and bare errnos.
func (r Root) OpenDir(rel string, opts Options) (int, error) {
	fd, _, err := r.open(rel, opts, false)
	return fd, err
}

// Locate is OpenDir that also returns the path of the directory relative to the
// root, without links and "..": "." for the root itself.
func (r Root) Locate(rel string, opts Options) (fd int, resolved string, err error) {
	return r.open(rel, opts, true)
}

func (r Root) open(rel string, opts Options, locate bool) (int, string, error) {
	if len(rel) >= maxPath {
		return -1, "", unix.ENAMETOOLONG
	}
	if !locate {
		// One system call when nothing is unusual. Whatever goes wrong, the
		// walk finds out what it is.
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

// walk is one component-wise walk from the root.
type walk struct {
	root  Root
	opts  Options
	rest  []string // still to go
	names []string // real directories between the root and fd
	fd    int      // -1: the root itself
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
	switch name {
	case "", ".":
		return nil
	case "..":
		if len(w.names) == 0 {
			return primitives.ErrPathEscape
		}
		// The parent of an open directory may have been moved out of the root
		// since it was opened, so ".." is never asked of the kernel.
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

// escapes reports whether the path leads out although its next name is missing: that
// name and the ".." that leads back from it are left out then.
func (w *walk) escapes() bool {
	depth := 1
	for i, name := range w.rest {
		switch name {
		case "", ".":
		case "..":
			depth--
		default:
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

// link goes on at the target of the symbolic link name.
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

func split(p string) []string { return strings.Split(p, "/") }

// Readlink returns the target of the symbolic link name in the open directory.
// What is not a link is EINVAL.
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

// changing reports whether the name, which was neither a directory nor a link
// when it was looked at, is one of both now.
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
