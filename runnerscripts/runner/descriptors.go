package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// softFiles is how many open files a command of a guest may have without asking for more.
	softFiles = 65536
	// hardFiles is how many it may ask for, as Node does.
	hardFiles = 524288
)

// boundFiles gives this program, and so what it starts, the limit of open files that
// commands of a guest have. Engines and machines differ in theirs: where it is 1024 builds
// fail, and where it is a billion programs that close each descriptor there could be take
// minutes.
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

// bounded returns the limit of open files for commands, which takes no right: it is never
// above the hard limit that there is.
func bounded(limit unix.Rlimit) unix.Rlimit {
	limit.Max = min(limit.Max, hardFiles)
	limit.Cur = min(limit.Max, softFiles)
	return limit
}
