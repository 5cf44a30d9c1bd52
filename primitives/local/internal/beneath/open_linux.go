package beneath

import "golang.org/x/sys/unix"

// PathOnly is the flag that opens a directory without permission to list it.
const PathOnly = unix.O_PATH

// openFast lets the kernel resolve the path. It fails where openat2 is missing (before Linux 5.6,
// gVisor), for links to absolute paths, and when names change meanwhile. The caller then walks by
// itself.
func openFast(root int, rel string, opts Options) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	if opts.List {
		how.Flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	}
	if opts.NoLinks {
		how.Resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	if rel == "" {
		rel = "."
	}
	return unix.Openat2(root, rel, &how)
}
