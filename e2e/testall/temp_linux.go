package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mountMemory mounts a file system in memory on a folder, unless this program may not, or there are
// not so many bytes to spare.
func mountMemory(dir string, enough uint64) (mounted bool, err error) {
	var available uint64 // in KiB
	if _, err := fmt.Sscanf(memory("MemAvailable"), "MemAvailable: %d", &available); err != nil || available<<10 < enough || os.Geteuid() != 0 {
		return false, nil
	}
	err = unix.Mount("agentenv-tests", dir, "tmpfs", 0, fmt.Sprintf("size=%d", enough))
	if errors.Is(err, unix.EPERM) { // root of a container
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("mount a file system in memory on %s: %w", dir, err)
	}
	return true, nil
}

// unmount also succeeds if something still uses the file system.
func unmount(dir string) error { return unix.Unmount(dir, unix.MNT_DETACH) }
