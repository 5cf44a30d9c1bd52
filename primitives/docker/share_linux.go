package docker

import "golang.org/x/sys/unix"

// executableThere reports whether programs can be run from where a file is.
func executableThere(file string) bool {
	var st unix.Statfs_t
	return unix.Statfs(file, &st) == nil && st.Flags&unix.ST_NOEXEC == 0
}
