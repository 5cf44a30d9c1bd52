package files

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// unpacker writes the entries of one archive below one directory.
type unpacker struct {
	f   *FS
	t   tree
	tar *tar.Reader
	// dirs get their mode and time at the end: until then files are made in them.
	dirs []*tar.Header
}

func (u *unpacker) all(ctx context.Context) error {
	for {
		h, err := u.tar.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, tar.ErrHeader):
			return fmt.Errorf("%w: %w", fs.ErrInvalid, err)
		case err != nil && u.f.stopped(ctx) != nil:
			return u.f.stopped(ctx)
		case err != nil:
			return readError(err)
		}
		if err := u.entry(ctx, h); err != nil {
			if u.f.stopped(ctx) != nil {
				return u.f.stopped(ctx)
			}
			return entryError(h, err)
		}
	}
}

// readError wraps an error of reading the archive. It leaves a sourceError, which is the error of
// the caller's reader, unchanged.
func readError(err error) error {
	if _, ok := errors.AsType[*sourceError](err); ok {
		return err
	}
	return fmt.Errorf("read the archive: %w", err)
}

const entryOp = "entry"

// entryError adds the entry to an error.
func entryError(h *tar.Header, err error) error {
	return &fs.PathError{Op: entryOp, Path: h.Name, Err: Classify(err)}
}

func (u *unpacker) entry(ctx context.Context, h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := inside(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag == tar.TypeDir {
			return nil // the directory itself belongs to the caller
		}
		return unix.EISDIR
	}
	p, err := u.t.place(name, true)
	if err != nil {
		return err
	}
	defer p.close()
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(p, name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(ctx, p, h, u.tar)
	case tar.TypeSymlink:
		return u.symlink(p, h)
	case tar.TypeLink:
		return u.copyOf(ctx, p, h)
	case tar.TypeFifo, tar.TypeChar, tar.TypeBlock:
		return primitives.ErrNotRegular
	}
	return fmt.Errorf("%w: entries of type %q", errors.ErrUnsupported, h.Typeflag)
}

// inside returns the clean form of an entry's path, which must not lead out.
func inside(name string) (string, error) {
	switch {
	case name == "":
		return "", invalid("the name is empty")
	case path.IsAbs(name) || slices.Contains(strings.Split(name, "/"), ".."):
		return "", primitives.ErrPathEscape
	}
	return path.Clean(name), nil
}

// writable is the mode that the owner needs in a directory while files are made in it.
const writable = 0o700

func (u *unpacker) dir(p place, name string, h *tar.Header) error {
	mode := fs.FileMode(h.Mode) & fs.ModePerm // use only the permission bits
	err := u.f.mkdirAt(p.dir, p.leaf, mode|writable)
	if errors.Is(err, unix.EEXIST) {
		// Keep a directory, or a link to a directory.
		fd, derr := u.t.openDir(name, false)
		if derr != nil {
			return derr
		}
		unix.Close(fd)
		if u.f.cfg.umask {
			return nil // it is not from the archive
		}
		err = nil
	}
	h.Name = name
	u.dirs = append(u.dirs, h)
	return err
}

// finish sets the modes and times of the directories, subdirectories first.
func (u *unpacker) finish() error {
	var first error
	for _, h := range slices.Backward(u.dirs) {
		if err := u.finishDir(h); err != nil && first == nil {
			first = entryError(h, err)
		}
	}
	return first
}

func (u *unpacker) finishDir(h *tar.Header) error {
	p, err := u.t.place(h.Name, false)
	if err != nil {
		return err
	}
	defer p.close()
	st, err := lstatat(p.dir, p.leaf)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err // an old link
	}
	if err := setTime(p.dir, p.leaf, h.ModTime); err != nil {
		return err
	}
	if u.f.cfg.umask {
		return nil
	}
	return chmodDir(p.dir, p.leaf, uint32(h.Mode)&0o777) // use only the permission bits
}

func setTime(dir int, name string, at time.Time) error {
	if at.IsZero() {
		return nil
	}
	ts := unix.NsecToTimespec(at.UnixNano())
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// file makes a new file, also in place of an old file or link, which it does not write through.
func (u *unpacker) file(ctx context.Context, p place, h *tar.Header, content io.Reader) error {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
	name, mode := p.leaf, uint32(h.Mode)&0o777 // use only the permission bits
	made := uint32(0o600)
	if u.f.cfg.umask {
		made = mode
	}
	fd, err := openat(p.dir, name, flags, made)
	if errors.Is(err, unix.EEXIST) {
		name = tempName()
		fd, err = openat(p.dir, name, flags, made)
	}
	if err != nil {
		return err
	}
	err = u.f.fill(ctx, fd, content)
	if err == nil {
		err = u.f.own(fd)
	}
	if err == nil && !u.f.cfg.umask {
		err = unix.Fchmod(fd, mode)
	}
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err == nil {
		err = setTime(p.dir, name, h.ModTime)
	}
	if err == nil && name != p.leaf {
		err = unix.Renameat(p.dir, name, p.dir, p.leaf)
	}
	if err != nil {
		_ = unix.Unlinkat(p.dir, name, 0)
	}
	return err
}

// copyOf unpacks a hard link as a copy. A link could tie an existing file to the new name, and a
// later write to one would change the other.
func (u *unpacker) copyOf(ctx context.Context, p place, h *tar.Header) error {
	source, err := inside(h.Linkname)
	if err != nil {
		return err
	}
	from, _, err := u.t.follow(source, false)
	if from.dir >= 0 {
		defer from.close()
	}
	if err != nil {
		return err
	}
	fd, _, err := openRegular(from.dir, from.leaf, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	in := os.NewFile(uintptr(fd), source)
	defer in.Close()
	return u.file(ctx, p, h, in)
}

// symlink makes a link. Its target is data: nothing here follows a link that leads out.
func (u *unpacker) symlink(p place, h *tar.Header) error {
	if h.Linkname == "" {
		return invalid("the link has no target")
	}
	err := unix.Symlinkat(h.Linkname, p.dir, p.leaf)
	if errors.Is(err, unix.EEXIST) {
		err = symlinkOver(h.Linkname, p.dir, p.leaf)
	}
	if err != nil {
		return err
	}
	if u.f.cfg.UID >= 0 || u.f.cfg.GID >= 0 {
		if err := unix.Fchownat(p.dir, p.leaf, u.f.cfg.UID, u.f.cfg.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return setTime(p.dir, p.leaf, h.ModTime)
}
