//go:build !linux

package beneath

import "golang.org/x/sys/unix"

// PathOnly is the flag that opens a directory for use in a path. On this system it needs permission
// to list the directory, too.
const PathOnly = unix.O_RDONLY

// openFast is not available on this system.
func openFast(int, string, Options) (int, error) { return -1, unix.ENOSYS }
