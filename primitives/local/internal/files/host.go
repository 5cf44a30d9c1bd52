package files

import (
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/beneath"
)

// OpenHost returns the files of a folder of this machine. It makes the folder if missing, with the
// umask of this process. Do not use absolute paths in it. It follows a symbolic link in the path of
// the folder only if the link stays in the folder that holds it: a sandbox may have made the link.
// The error is an *fs.PathError with the part of the path that failed.
func OpenHost(dir string) (*FS, error) {
	at, begin := ".", dir
	if path.IsAbs(dir) {
		at, begin = "/", dir[1:]
	}
	fd, err := openPath(at)
	for part := range strings.SplitSeq(filepath.Clean(begin), "/") {
		if err != nil {
			break
		}
		at = path.Join(at, part)
		fd, err = openStep(fd, part)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: at, Err: Classify(err)}
	}
	return newFS(Config{UID: -1, GID: -1, umask: true}, nil, fd, "."), nil
}

// openStep opens a folder in the open folder dir, which it closes.
func openStep(dir int, name string) (int, error) {
	defer unix.Close(dir)
	if name == ".." {
		return openat(dir, name, dirFlags, 0)
	}
	mkdir := func(dir int, name string) error { return unix.Mkdirat(dir, name, 0o777) }
	return beneath.Root{FD: dir}.OpenDir(name, beneath.Options{Mkdir: mkdir})
}

// Cause splits an error of these files into its path, which may be that of an entry of an archive,
// and its cause. ours is false for an error of the reader whose content the caller wanted to write.
func Cause(err error) (name string, ours bool, cause error) {
	if source, ok := errors.AsType[*sourceError](err); ok {
		return "", false, source.err
	}
	if where, ok := errors.AsType[*primitives.Error](err); ok {
		name, err = where.Target, where.Err
	}
	if entry, ok := errors.AsType[*fs.PathError](err); ok && entry.Op == entryOp {
		name, err = entry.Path, entry.Err
	}
	return name, true, err
}
