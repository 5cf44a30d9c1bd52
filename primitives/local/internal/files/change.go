package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Mkdir implements primitives.Files.
func (f *FS) Mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	return f.fail("mkdir", name, f.mkdir(ctx, name, mode))
}

func (f *FS) mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	if err := f.begin(ctx, name); err != nil {
		return err
	}
	if mode&^(fs.ModePerm|fs.ModeDir) != 0 {
		return invalid("Mode %v has more than permission bits", mode)
	}
	if mode.Perm() == 0 {
		mode = parentMode
	}
	p, err := f.place(name, true)
	if err != nil {
		return err
	}
	defer p.close()
	if p.leaf == "." {
		return nil
	}
	err = f.mkdirAt(p.dir, p.leaf, mode)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	// A directory, or a link to one, is a success.
	t, err := f.tree(name)
	if err != nil {
		return err
	}
	defer t.close()
	fd, err := t.openDir(name, false)
	if errors.Is(err, unix.ENOENT) {
		return unix.ENOTDIR // a dangling link
	}
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// Move implements primitives.Files. Between file systems it copies files and links; a directory is
// errors.ErrUnsupported.
func (f *FS) Move(ctx context.Context, from, to string) error {
	target := from
	err := f.move(ctx, from, to)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		target = from + " -> " + to
	}
	return f.fail("move", target, err)
}

func (f *FS) move(ctx context.Context, from, to string) error {
	if err := f.begin(ctx, from); err != nil {
		return err
	}
	if err := f.begin(ctx, to); err != nil {
		return err
	}
	src, err := f.place(from, false)
	if err != nil {
		return err
	}
	defer src.close()
	st, err := lstatat(src.dir, src.leaf)
	if err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir {
		if err := f.removable(src, &st); err != nil {
			return err
		}
		if f.within(from, to) {
			return invalid("a directory cannot be moved into itself")
		}
	}
	dst, err := f.place(to, true)
	if err != nil {
		return err
	}
	defer dst.close()
	old, err := lstatat(dst.dir, dst.leaf)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return err
	case old.Dev == st.Dev && old.Ino == st.Ino:
		return f.moveOntoItself(src, dst, isDir)
	case old.Mode&unix.S_IFMT == unix.S_IFDIR:
		return primitives.ErrIsDirectory
	case isDir:
		return unix.ENOTDIR
	}
	if isDir {
		// Do not replace an empty directory that appears now, as a plain rename would.
		err = renameNew(src.dir, src.leaf, dst.dir, dst.leaf)
	} else {
		f.commit.RLock()
		err = unix.Renameat(src.dir, src.leaf, dst.dir, dst.leaf)
		f.commit.RUnlock()
	}
	if errors.Is(err, unix.EXDEV) {
		return f.moveAcross(ctx, src, dst, &st)
	}
	return err
}

// moveOntoItself handles two names of one file, for which rename does nothing.
func (f *FS) moveOntoItself(src, dst place, isDir bool) error {
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(src.dir, &a), unix.Fstat(dst.dir, &b)); err != nil {
		return err
	}
	if isDir || src.leaf == dst.leaf && a.Dev == b.Dev && a.Ino == b.Ino {
		return nil
	}
	return unix.Unlinkat(src.dir, src.leaf, 0)
}

// moveAcross copies to another file system and then removes the original.
func (f *FS) moveAcross(ctx context.Context, src, dst place, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		fd, _, err := openRegular(src.dir, src.leaf, unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		in := os.NewFile(uintptr(fd), src.leaf)
		defer in.Close()
		j := job{f: f, dir: dst.dir, leaf: dst.leaf, old: st, opts: primitives.WriteOptions{}}
		// Hide the os.File: it would copy by itself, without checking ctx.
		if err := j.replace(ctx, struct{ io.Reader }{in}); err != nil {
			return err
		}
	case unix.S_IFLNK:
		info, err := describe(src.dir, src.leaf, src.leaf, st)
		if err != nil {
			return err
		}
		if err := symlinkOver(info.Target, dst.dir, dst.leaf); err != nil {
			return err
		}
	default:
		return errors.ErrUnsupported
	}
	return unix.Unlinkat(src.dir, src.leaf, 0)
}

// symlinkOver makes a symbolic link in place of an existing file.
func symlinkOver(target string, dir int, name string) error {
	temp := tempName()
	if err := unix.Symlinkat(target, dir, temp); err != nil {
		return err
	}
	err := unix.Renameat(dir, temp, dir, name)
	if err != nil {
		_ = unix.Unlinkat(dir, temp, 0)
	}
	return err
}

// within reports whether the path to is from or below it. It compares the names only.
func (f *FS) within(from, to string) bool {
	from, to = f.absolute(from), f.absolute(to)
	return from == to || strings.HasPrefix(to, strings.TrimRight(from, "/")+"/")
}

func (f *FS) absolute(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(f.names[0], name)
}

// linkNew renames without replacing, for kernels that have no such rename. For files this is
// atomic; for directories it is a check and a rename.
func linkNew(fromDir int, from string, toDir int, to string) error {
	err := unix.Linkat(fromDir, from, toDir, to, 0)
	switch {
	case err == nil:
		return unix.Unlinkat(fromDir, from, 0)
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EOPNOTSUPP):
		if _, err := lstatat(toDir, to); !errors.Is(err, unix.ENOENT) {
			if err == nil {
				err = unix.EEXIST
			}
			return err
		}
		return unix.Renameat(fromDir, from, toDir, to)
	}
	return err
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
