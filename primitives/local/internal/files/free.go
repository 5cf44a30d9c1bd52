package files

import (
	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives/local/internal/beneath"
)

// slowToFree is the size from which the kernel takes long to free a file.
const slowToFree = 16 << 20

// hold opens the file that is about to be replaced, if freeing it would take long, so that the
// rename does not free it. It returns -1 if no file is held.
func (j *job) hold() int {
	if j.old == nil || j.old.Size < slowToFree || j.old.Nlink > 1 {
		return -1
	}
	fd, err := openat(j.dir, j.leaf, beneath.PathOnly|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1 // the rename then frees the file
	}
	return fd
}

// freeLater closes a file from hold in the background, which frees it. Close waits for that.
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
