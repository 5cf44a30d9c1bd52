package files

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/beneath"
)

const (
	// dirFlags open a directory for use in paths.
	dirFlags = beneath.PathOnly | unix.O_DIRECTORY | unix.O_CLOEXEC
	// parentMode is the mode of parent directories that an operation makes.
	parentMode fs.FileMode = 0o755
	// maxLinks is how many links are followed before the path counts as a loop.
	maxLinks = 40
)

var noOptions = beneath.Options{} // Go has no constant structs

// tree is where one operation looks up paths: below a root or, if free, anywhere on the machine.
type tree struct {
	root beneath.Root
	free bool
	// mkdir makes a missing parent.
	mkdir func(dir int, name string) error
}

// place is a name in an open directory.
type place struct {
	dir  int
	leaf string // "." when the path names the directory itself
	// base is the path by which dir was opened. Link targets are relative to it.
	base string
}

func (p place) close() { unix.Close(p.dir) }

// tree returns the tree in which to look up name. The caller must close it.
func (f *FS) tree(name string) (tree, error) {
	t := tree{mkdir: func(dir int, name string) error { return f.mkdirAt(dir, name, parentMode) }}
	if path.IsAbs(name) {
		t.free = true
		return t, f.alive()
	}
	root, err := f.workspace()
	t.root = beneath.Root{FD: root, Names: f.names}
	return t, err
}

func (t tree) close() {
	if !t.free {
		unix.Close(t.root.FD)
	}
}

// place returns the directory that holds name; see tree.place.
func (f *FS) place(name string, mk bool) (place, error) {
	t, err := f.tree(name)
	if err != nil {
		return place{}, err
	}
	defer t.close()
	return t.place(name, mk)
}

// place opens the directory that holds name. With mk it makes missing parents. It does not look up
// the last part of the path.
func (t tree) place(name string, mk bool) (place, error) {
	base, leaf := splitPath(name)
	fd, err := t.openDir(base, mk)
	return place{dir: fd, leaf: leaf, base: base}, err
}

// follow is place, but follows symbolic links in the last part of the path, too. It returns the
// final place. If only the last part is missing, it returns fs.ErrNotExist together with an open
// place.
func (t tree) follow(name string, mk bool) (place, unix.Stat_t, error) {
	for range maxLinks {
		p, err := t.place(name, mk)
		if err != nil {
			return place{dir: -1}, unix.Stat_t{}, err
		}
		st, err := lstatat(p.dir, p.leaf)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			p.close()
			return place{dir: -1}, st, err
		}
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return p, st, err
		}
		target, err := beneath.Readlink(p.dir, p.leaf)
		p.close()
		if err == nil {
			name, err = t.target(p.base, target)
		}
		if err != nil {
			return place{dir: -1}, st, err
		}
	}
	return place{dir: -1}, unix.Stat_t{}, unix.ELOOP
}

func (t tree) target(base, target string) (string, error) {
	switch {
	case !t.free:
		return t.root.Target(base, target)
	case path.IsAbs(target):
		return target, nil
	}
	return base + "/" + target, nil
}

// openDir opens a directory by its path.
func (t tree) openDir(name string, mk bool) (int, error) {
	if !t.free {
		if mk {
			return t.root.OpenDir(name, beneath.Options{Mkdir: t.mkdir})
		}
		return t.root.OpenDir(name, noOptions)
	}
	fd, err := openPath(name)
	if !mk || !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	base, leaf := splitPath(name)
	if leaf == "." {
		return -1, err
	}
	parent, err := t.openDir(base, true)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := t.mkdir(parent, leaf); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return openat(parent, leaf, dirFlags, 0)
}

// splitPath splits a path into a directory and a name in it. It does not clean the path: the part
// before a ".." may be a link.
func splitPath(name string) (base, leaf string) {
	name = strings.TrimRight(name, "/")
	i := strings.LastIndexByte(name, '/')
	base, leaf = name[:i+1], name[i+1:]
	switch leaf {
	case "": // of "/"
		return "/", "."
	case ".", "..":
		return name, "."
	}
	if base == "" {
		base = "."
	}
	return base, leaf
}

func openPath(name string) (int, error) { return openat(unix.AT_FDCWD, name, dirFlags, 0) }

// openat is the system call, repeated after EINTR, which occurs on network file systems.
func openat(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func lstatat(dir int, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	for {
		err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if !errors.Is(err, unix.EINTR) {
			return st, err
		}
	}
}
