package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// openSource opens a file or folder that is no symbolic link. Links on the way to it are
// followed: what counts is what was opened.
func openSource(name string) (opened, error) {
	o, err := openPath(unix.AT_FDCWD, name, name)
	if errors.Is(err, fs.ErrNotExist) {
		return o, fmt.Errorf("make it first: %w", err)
	}
	if err != nil {
		return o, err
	}
	if o.name, err = os.Readlink(o.path()); err != nil {
		return opened{}, errors.Join(err, o.close())
	}
	return o, nil
}

// child opens what a folder has by that name, which must not be a symbolic link.
func (o opened) child(name string) (opened, error) {
	return openPath(int(o.file.Fd()), name, o.name+"/"+name)
}

// path leads to what is open, for as long as it is.
func (o opened) path() string { return fmt.Sprintf("/proc/self/fd/%d", o.file.Fd()) }

// identity is what the guest calls the same file.
func (o opened) identity() (dev, ino uint64) {
	var st unix.Stat_t
	_ = unix.Fstat(int(o.file.Fd()), &st) // it is open
	return st.Dev, st.Ino
}

func openPath(at int, name, full string) (opened, error) {
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return opened{}, &os.PathError{Op: "open", Path: full, Err: err}
	}
	o := opened{file: os.NewFile(uintptr(fd), full), name: full}
	if o.info, err = o.file.Stat(); err != nil {
		return opened{}, errors.Join(err, o.close())
	}
	if o.info.Mode()&fs.ModeSymlink != 0 {
		return opened{}, errors.Join(errLink(full), o.close())
	}
	return o, nil
}
