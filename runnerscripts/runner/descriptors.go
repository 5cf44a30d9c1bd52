package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// softFiles is the soft limit of open files for the commands of a guest.
	softFiles = 65536
	// hardFiles is the hard limit, up to which a command may raise its own, as Node does.
	hardFiles = 524288
)

// boundFiles gives this program, and so the programs it starts, the limit of open files for
// commands of a guest. The limits of engines and machines differ. With 1024, builds fail. With a
// billion, programs that close every possible descriptor take minutes.
func boundFiles() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	limit = bounded(limit)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("limit the number of open files: %w", err)
	}
	return nil
}

// bounded returns the limit of open files for commands. Setting it needs no privilege, because it
// is never above the current hard limit.
func bounded(limit unix.Rlimit) unix.Rlimit {
	limit.Max = min(limit.Max, hardFiles)
	limit.Cur = min(limit.Max, softFiles)
	return limit
}
