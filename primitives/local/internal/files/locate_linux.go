package files

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// locate returns the path of an open file that is in the same mounted file system as
// one of the given paths.
func locate(fd int, mounts []string) (string, error) {
	in, err := mountOf(fd, "")
	if err != nil {
		return "", err
	}
	for _, m := range mounts {
		if other, err := mountOf(unix.AT_FDCWD, m); err == nil && other == in {
			return os.Readlink(procPath(fd))
		}
	}
	return "", fmt.Errorf("%w: it is in another file system", os.ErrNotExist)
}

// mountOf returns the number of the mount that a file is in, which old kernels do not
// tell. An empty name is fd itself.
func mountOf(fd int, name string) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, name, unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, errors.ErrUnsupported
	}
	return st.Mnt_id, nil
}
