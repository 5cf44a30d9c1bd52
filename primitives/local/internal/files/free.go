package files

import (
	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/beneath"
)

// slowToFree is from which size on the kernel takes long to free a file.
const slowToFree = 16 << 20

// hold keeps the file that is about to be replaced from being freed if that takes
// long: it returns what it is open as, or -1.
func (j *job) hold() int {
	if j.old == nil || j.old.Size < slowToFree || j.old.Nlink > 1 {
		return -1
	}
	fd, err := openat(j.dir, j.leaf, beneath.PathOnly|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1 // then it is freed at once
	}
	return fd
}

// freeLater lets go of such a file without keeping the caller waiting. Close does
// wait.
func (f *FS) freeLater(fd int) {
	if fd < 0 {
		return
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.anchor < 0 {
		unix.Close(fd)
		return
	}
	f.freeing.Go(func() { unix.Close(fd) })
}
