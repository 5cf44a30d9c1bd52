package files

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// stager is a reader for WriteFile whose content can come another way than
// through Read: as a file that somebody puts into a folder of this machine.
type stager interface {
	// Read reads what does not come that way.
	io.Reader
	// Stage has the file put into dir under this name, owned by uid and gid. look
	// reports whether a file of that size is there, and may be called several
	// times; what the last call has found is the beginning of the content if Stage
	// returns true. With false nothing has come, and Read has everything.
	Stage(dir, name string, uid, gid int, look func(size int64) bool) (bool, error)
}

// takeStaged lets s stage what it has for the new file temp, which fd is. What was
// staged becomes that file's content, or the file itself: then temp and what is
// returned are that. It is written at its end. Nothing remains in the staging folder.
func (j *job) takeStaged(ctx context.Context, s stager, temp *string, fd int) (int, error) {
	dir, err := j.f.openStaging()
	if err != nil {
		return fd, nil //nolint:nilerr // without the folder everything comes through s
	}
	defer unix.Close(dir)
	name := tempName()
	found := -1
	defer func() {
		_ = unix.Unlinkat(dir, name, 0) // it may not be there
		closeIfOpen(found)
	}()
	staged, err := s.Stage(j.f.cfg.Staging, name, unix.Geteuid(), unix.Getegid(), func(size int64) bool {
		closeIfOpen(found)
		found, err = openStaged(dir, name, size)
		return err == nil
	})
	if err != nil || !staged || found < 0 {
		return fd, err
	}
	if err := ctx.Err(); err != nil {
		return fd, err
	}
	// Not in the place of temp: ext4 begins to write to the disk what replaces a file,
	// and that takes long.
	if alike(fd, found) && renameNew(dir, name, j.dir, name) == nil {
		_ = unix.Unlinkat(j.dir, *temp, 0) // it is empty
		unix.Close(fd)
		*temp, fd, found = name, found, -1
		now := unix.NsecToTimeval(time.Now().UnixNano())
		_ = unix.Futimes(fd, []unix.Timeval{now, now}) // of no consequence
		return fd, nil
	}
	from := os.NewFile(uintptr(found), name)
	found = -1
	err = j.f.copyIn(ctx, fd, from)
	_ = from.Close() // it was only read
	return fd, err
}

// openStaging opens the staging folder if files can be taken out of it.
func (f *FS) openStaging() (int, error) {
	if f.cfg.Staging == "" {
		return -1, fs.ErrNotExist
	}
	dir, err := openat(unix.AT_FDCWD, f.cfg.Staging, dirFlags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Faccessat(dir, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		unix.Close(dir)
		return -1, err
	}
	return dir, nil
}

// openStaged opens a staged file, to be read or to be written at its end. What is
// not just as it was asked for is refused: others may have put it there.
func openStaged(dir int, name string, size int64) (int, error) {
	fd, err := openat(dir, name, unix.O_RDWR|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil {
		err = regular(&st)
	}
	if err == nil && (st.Size != size || st.Nlink != 1 || int(st.Uid) != unix.Geteuid()) {
		err = fmt.Errorf("%w: another file was staged", fs.ErrInvalid)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// alike reports whether a staged file may take the place of one that was made where
// it is to be: whether that has got nothing from its directory that the other has
// not, an owner, a group, or attributes such as access lists.
func alike(made, staged int) bool {
	var m, s unix.Stat_t
	if unix.Fstat(made, &m) != nil || unix.Fstat(staged, &s) != nil || m.Uid != s.Uid || m.Gid != s.Gid {
		return false
	}
	return attributes(made) == attributes(staged)
}

// attributes returns the names of a file's extended attributes.
func attributes(fd int) string {
	var names [1 << 10]byte
	n, err := unix.Flistxattr(fd, names[:])
	if err != nil {
		return err.Error()
	}
	return string(names[:n])
}

func closeIfOpen(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}
