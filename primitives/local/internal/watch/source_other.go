//go:build !linux

package watch

import (
	"os"

	"golang.org/x/sys/unix"
)

func newSource() (source, error) { return newNotify() }

// list returns the names in an open directory.
func (s *scanner) list(fd int) ([]dirent, error) {
	dup, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(dup), ".")
	defer d.Close()
	names, err := d.Readdirnames(-1)
	list := make([]dirent, 0, len(names))
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			list = append(list, dirent{name, isDir(&st)})
		}
	}
	return list, err
}
