package files

import (
	"errors"
	"io/fs"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/beneath"
)

// describe returns the FileInfo of name in dir, with the path as. st is the result of lstat.
func describe(dir int, name, as string, st *unix.Stat_t) (primitives.FileInfo, error) {
	info := primitives.FileInfo{
		Path:    as,
		Mode:    fileMode(uint32(st.Mode)),                          //nolint:unconvert // narrower on other platforms
		ModTime: time.Unix(int64(st.Mtim.Sec), int64(st.Mtim.Nsec)), //nolint:unconvert // narrower on other platforms
		UID:     int(st.Uid),
		GID:     int(st.Gid),
	}
	switch {
	case info.Mode.IsRegular():
		info.Size = st.Size
		info.Revision = revision(st)
	case info.Mode&fs.ModeSymlink != 0:
		target, err := beneath.Readlink(dir, name)
		if errors.Is(err, unix.EINVAL) {
			err = unix.ENOENT // replaced since the lstat
		}
		if err != nil {
			return primitives.FileInfo{}, err
		}
		info.Target = target
	}
	return info, nil
}

// revision identifies this state of this file. The kernel sets the change time itself, so that no
// program can give new content an old revision. The resolution is the kernel's: before Linux 6.13
// two changes of the same size within a few milliseconds may have the same revision.
func revision(st *unix.Stat_t) string {
	b := make([]byte, 0, 64)
	for _, n := range []int64{
		int64(st.Dev), int64(st.Ino), st.Size, // only told apart, never computed with
		int64(st.Mtim.Sec), int64(st.Mtim.Nsec), int64(st.Ctim.Sec), int64(st.Ctim.Nsec), //nolint:unconvert // narrower on other platforms
	} {
		b = strconv.AppendInt(b, n, 36)
		b = append(b, '.')
	}
	return string(b[:len(b)-1])
}

// fileMode converts a mode of the kernel into one of io/fs.
func fileMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	switch m & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	default:
		mode |= fs.ModeIrregular
	}
	if m&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if m&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if m&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// regular returns nil for a regular file.
func regular(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return primitives.ErrIsDirectory
	}
	return primitives.ErrNotRegular
}
