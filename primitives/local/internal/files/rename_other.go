//go:build !linux

package files

import "golang.org/x/sys/unix"

// renameNew renames and fails with EEXIST if the new name is taken.
func renameNew(fromDir int, from string, toDir int, to string) error {
	return linkNew(fromDir, from, toDir, to)
}

// chmodDir changes the mode of a directory that cannot be opened for reading. It follows no link
// that has replaced the directory.
func chmodDir(dir int, name string, mode uint32) error {
	return unix.Fchmodat(dir, name, mode, unix.AT_SYMLINK_NOFOLLOW)
}
