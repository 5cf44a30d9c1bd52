// Package treecopy copies a folder that a hostile process may be changing at the same time. It
// opens what it reads step by step without following links, so that swapping a folder for a link
// has no effect. The caller must keep other users from the copy until it is complete.
package treecopy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Options change what is copied. The zero value copies everything.
type Options struct {
	// Skip reports whether to leave out an entry with this slash path relative to the folder; nil
	// leaves out nothing.
	Skip func(rel string) bool
	// Link returns the new target of a symbolic link; nil keeps all targets.
	Link func(target string) string
}

// Copy copies the folder from to the folder to, which may already contain folders. It copies files,
// folders, symbolic links and FIFOs, with permissions, modification times, owners (if this program
// may give files away), hard links among the files, and holes. Where the file system can, files
// share their data until one of them is changed. Copy leaves out sockets, devices and what vanishes
// meanwhile. A file that is being written is copied in its state at some moment.
//
// If Copy fails the caller must remove the partial copy.
func Copy(ctx context.Context, from, to string, opts Options) error {
	src, err := unix.Open(from, openDir, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: from, Err: err}
	}
	defer unix.Close(src)
	var info unix.Stat_t
	if err := unix.Fstat(src, &info); err != nil {
		return &fs.PathError{Op: "stat", Path: from, Err: err}
	}
	c := &copier{opts: opts, to: to, root: os.Geteuid() == 0, linked: make(map[inode]string)}
	if err := c.dir(ctx, src, ".", &info); err != nil {
		return err
	}
	return c.finish()
}

const (
	openDir  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	openFile = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
)

// inode identifies a file with several names.
type inode struct{ dev, ino uint64 }

// copier is the state of one copy.
type copier struct {
	opts   Options
	to     string
	root   bool // this program may give files away
	linked map[inode]string
	dirs   []madeDir
}

// madeDir is a folder whose permissions and times are set when its content is complete.
type madeDir struct {
	name string
	info unix.Stat_t
}

func (c *copier) dest(rel string) string { return filepath.Join(c.to, filepath.FromSlash(rel)) }

// dir copies an open folder.
func (c *copier) dir(ctx context.Context, src int, rel string, info *unix.Stat_t) error {
	if err := os.Mkdir(c.dest(rel), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	c.dirs = append(c.dirs, madeDir{c.dest(rel), *info})
	names, err := readNames(src)
	if err != nil {
		return &fs.PathError{Op: "readdir", Path: rel, Err: err}
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		child := path.Join(rel, name)
		if c.opts.Skip != nil && c.opts.Skip(child) {
			continue
		}
		err := c.entry(ctx, src, name, child)
		if err != nil && !vanished(err) {
			return &fs.PathError{Op: "copy", Path: child, Err: unwrapPath(err)}
		}
	}
	return nil
}

// readNames returns the names in an open folder, which stays open.
func readNames(dir int) ([]string, error) {
	again, err := unix.Openat(dir, ".", openDir, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(again), ".")
	defer f.Close() // nothing was written
	return f.Readdirnames(-1)
}

// entry copies the entry name of an open folder.
func (c *copier) entry(ctx context.Context, dir int, name, rel string) error {
	var info unix.Stat_t
	if err := unix.Fstatat(dir, name, &info, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch info.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		src, err := unix.Openat(dir, name, openDir, 0)
		if err != nil {
			return err
		}
		defer unix.Close(src)
		return c.dir(ctx, src, rel, &info)
	case unix.S_IFREG:
		return c.file(ctx, dir, name, rel)
	case unix.S_IFLNK:
		return c.link(dir, name, rel, &info)
	case unix.S_IFIFO:
		if err := unix.Mkfifo(c.dest(rel), 0o600); err != nil {
			return err
		}
		return c.setAttributes(c.dest(rel), &info)
	}
	return nil
}

// link copies a symbolic link.
func (c *copier) link(dir int, name, rel string, info *unix.Stat_t) error {
	buf := make([]byte, 64<<10)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return err
	}
	target := string(buf[:n])
	if c.opts.Link != nil {
		target = c.opts.Link(target)
	}
	if err := os.Symlink(target, c.dest(rel)); err != nil {
		return err
	}
	return c.setAttributes(c.dest(rel), info)
}

// file copies a regular file. If it has already copied the file under another name, it makes a hard
// link to that copy.
func (c *copier) file(ctx context.Context, dir int, name, rel string) (err error) {
	fd, err := unix.Openat(dir, name, openFile, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return err
	}
	if info.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil // it was replaced by a file of a kind that is left out
	}
	to := c.dest(rel)
	if info.Nlink > 1 {
		id := inode{uint64(info.Dev), info.Ino} //nolint:unconvert // Dev is an int32 on macOS
		if first, ok := c.linked[id]; ok {
			return os.Link(first, to)
		}
		c.linked[id] = to
	}
	out, err := unix.Open(to, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	err = fill(ctx, out, fd, info.Size)
	if err = errors.Join(err, unix.Close(out)); err != nil {
		return err
	}
	return c.setAttributes(to, &info)
}

// setAttributes sets the owner, the permissions and the times of a copy to those of the original.
func (c *copier) setAttributes(name string, info *unix.Stat_t) error {
	if c.root {
		if err := os.Lchown(name, int(info.Uid), int(info.Gid)); err != nil {
			return err
		}
	}
	if info.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(name, uint32(info.Mode)&0o7777); err != nil { //nolint:unconvert // Mode is a uint16 on macOS
			return err
		}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{info.Mtim, info.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// finish dresses the folders, the innermost first, because a dressed folder may not be writable.
func (c *copier) finish() error {
	for i := len(c.dirs) - 1; i >= 0; i-- {
		if err := c.setAttributes(c.dirs[i].name, &c.dirs[i].info); err != nil {
			return err
		}
	}
	return nil
}

// copyBuffer is how much is copied at a time if the kernel does not copy.
const copyBuffer = 256 << 10

// copyRange copies part of a file to the same offset in another file. It is no error if the file
// has become shorter.
func copyRange(ctx context.Context, out, in int, from, to int64) error {
	buf := make([]byte, min(copyBuffer, to-from))
	for from < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Pread(in, buf[:min(int64(len(buf)), to-from)], from)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		for done := 0; done < n; {
			m, err := unix.Pwrite(out, buf[done:n], from+int64(done))
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			done += max(m, 0)
		}
		from += int64(n)
	}
	return nil
}

// vanished reports whether an error means that an entry was removed or replaced.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)
}

// unwrapPath leaves only one path in the message: the one that the caller knows.
func unwrapPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return err
	}
	var l *os.LinkError
	if errors.As(err, &l) {
		return fmt.Errorf("%s: %w", l.Op, l.Err)
	}
	return err
}
