package files

import (
	"os"

	"golang.org/x/sys/unix"
)

// readNames returns the names in an open directory, in no particular order. The directory stays
// open.
func readNames(fd int) ([]string, error) {
	dup, err := openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(dup), ".")
	defer d.Close()
	return d.Readdirnames(-1)
}
