package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// hide keeps other processes of the same user from tracing this one and from reading its memory,
// environment and descriptors in /proc. Only a process with CAP_SYS_PTRACE still can. The kernel
// writes no core dump of this process either.
func hide() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep other processes from reading this one: %w", err)
	}
	return nil
}
