//go:build !linux

package beneath

import "golang.org/x/sys/unix"

// PathOnly is the flag that opens a directory as a place. Here it needs the
// permission to list it too.
const PathOnly = unix.O_RDONLY

// openFast is not available here.
func openFast(int, string, Options) (int, error) { return -1, unix.ENOSYS }
