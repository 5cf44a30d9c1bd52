package files

import (
	"context"
	"errors"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Remove implements primitives.Files. With recursive it removes all it can and returns the first
// error. It refuses the folders of Paths and all folders that contain one of them.
func (f *FS) Remove(ctx context.Context, name string, recursive bool) error {
	return f.fail("remove", name, f.remove(ctx, name, recursive))
}

func (f *FS) remove(ctx context.Context, name string, recursive bool) error {
	if err := f.begin(ctx, name); err != nil {
		return err
	}
	p, err := f.place(name, false)
	if err != nil {
		return err
	}
	defer p.close()
	st, err := lstatat(p.dir, p.leaf)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlinkat(p.dir, p.leaf, 0)
	}
	if err := f.removable(p, &st); err != nil {
		return err
	}
	if !recursive {
		return unix.Unlinkat(p.dir, p.leaf, unix.AT_REMOVEDIR)
	}
	r := remover{ctx: ctx.Err, top: -1}
	return r.tree(p.dir, p.leaf, 0)
}

// RemoveTree removes a file, or a folder with its content. It is os.RemoveAll for files of a
// sandbox: folders may be nested to any depth, and may deny access to their owner. It follows no
// link below the folder that holds the name.
func RemoveTree(name string) error {
	dir, err := openPath(path.Dir(name))
	if err == nil {
		defer unix.Close(dir)
		leaf := path.Base(name)
		var st unix.Stat_t
		if st, err = lstatat(dir, leaf); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.Unlinkat(dir, leaf, 0)
		} else if err == nil {
			r := remover{ctx: func() error { return nil }, top: -1}
			err = r.tree(dir, leaf, 0)
		}
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &fs.PathError{Op: "remove", Path: name, Err: err}
}

// removable refuses the folders of the sandbox and all folders that contain one of them, whatever
// name is used.
func (f *FS) removable(p place, st *unix.Stat_t) error {
	if p.leaf == "." {
		return invalid("the path must end in the name of the directory")
	}
	for _, dir := range f.cfg.Paths.All() {
		for dir != "" {
			var s unix.Stat_t
			if err := unix.Stat(dir, &s); err == nil && s.Dev == st.Dev && s.Ino == st.Ino {
				return invalid("the sandbox needs this folder; end the sandbox with Terminate instead")
			}
			if dir == "/" {
				break
			}
			dir = path.Dir(dir)
		}
	}
	return nil
}

const (
	removePasses = 10  // how often a directory that other processes keep filling is emptied
	removeDepth  = 100 // how many directories may be open at once
)

// remover removes one directory with its content.
type remover struct {
	ctx  func() error // the error of the context
	top  int          // the open directory itself; -1 before it is opened
	more bool         // a directory was moved to top, which must be emptied again
}

// tree removes the directory name in dir, depth levels below the top.
func (r *remover) tree(dir int, name string, depth int) error {
	for pass := 0; pass < removePasses; pass++ {
		first, err := r.empty(dir, name, depth)
		if err != nil {
			if errors.Is(err, unix.ENOENT) {
				return nil
			}
			return err
		}
		if first != nil && r.ctx() != nil {
			return first
		}
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			return nil
		case first != nil:
			return first
		case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
			return err
		case depth == 0 && r.more:
			r.more, pass = false, 0
		}
	}
	return primitives.ErrNotEmpty
}

// empty removes the content of a directory as far as it can. first says why something remains, err
// why nothing could be removed.
func (r *remover) empty(dir int, name string, depth int) (first, err error) {
	fd, err := openToEmpty(dir, name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if depth == 0 {
		r.top = fd
	}
	return r.entries(fd, depth), nil
}

// openToEmpty opens a directory for listing and removing. If permissions are missing, it first
// tries to grant them, as the owner may.
func openToEmpty(dir int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	if unix.Faccessat(dir, name, unix.R_OK|unix.W_OK|unix.X_OK, unix.AT_EACCESS) != nil {
		_ = chmodDir(dir, name, 0o700) // if that fails, opening says why
	}
	fd, err := openat(dir, name, flags, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		err = unix.ENOENT // the named directory was replaced
	}
	return fd, err
}

func (r *remover) entries(fd, depth int) error {
	names, err := readNames(fd)
	if err != nil {
		return err
	}
	var first error
	for _, name := range names {
		if err := r.ctx(); err != nil {
			return err
		}
		err := unix.Unlinkat(fd, name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			if st, serr := lstatat(fd, name); serr == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
				err = r.below(fd, name, depth+1)
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) && first == nil {
			first = err
		}
	}
	return first
}

// below removes a directory in the tree. It first moves a very deep one up, because every level
// needs an open directory and programs can nest directories without limit.
func (r *remover) below(fd int, name string, depth int) error {
	if depth < removeDepth {
		return r.tree(fd, name, depth)
	}
	_ = chmodDir(fd, name, 0o700) // moving it needs these permissions
	up := tempName()
	if err := unix.Renameat(fd, name, r.top, up); err != nil {
		return err
	}
	r.more = true
	return nil
}
