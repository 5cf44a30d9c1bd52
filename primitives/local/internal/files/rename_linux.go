package files

import (
	"errors"

	"golang.org/x/sys/unix"
)

// renameNew renames and fails with EEXIST if the new name is taken.
func renameNew(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return linkNew(fromDir, from, toDir, to) // the file system lacks it
	}
	return err
}

// chmodDir changes the mode of a directory that cannot be opened for reading. It follows no link
// that has replaced the directory.
func chmodDir(dir int, name string, mode uint32) error {
	fd, err := openat(dir, name, dirFlags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod(procPath(fd), mode)
}
