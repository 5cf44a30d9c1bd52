// Package output opens files of this machine that a user names for writing. A sandbox may have
// changed the folder of such a file before, for example a mounted one.
package output

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// errLink is a file that is a symbolic link. It wraps [primitives.ErrNotRegular].
var errLink = fmt.Errorf("%w: it is a symbolic link, which a sandbox may have made; name the file itself", primitives.ErrNotRegular)

// Open opens a regular file to write to. A new file has mode 0600. It follows no symbolic link at
// the end of name, and writes to no pipe or device: for these the error is an *fs.PathError with
// [primitives.ErrNotRegular] or [primitives.ErrIsDirectory]. flag is that of os.OpenFile, such as
// os.O_WRONLY|os.O_TRUNC; os.O_CREATE is added.
func Open(name string, flag int) (*os.File, error) {
	f, err := os.OpenFile(name, flag&^os.O_TRUNC|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, &fs.PathError{Op: "open", Path: name, Err: errLink}
	case errors.Is(err, unix.EISDIR):
		return nil, &fs.PathError{Op: "open", Path: name, Err: primitives.ErrIsDirectory}
	case errors.Is(err, unix.ENXIO): // a pipe without a reader, or a socket
		return nil, &fs.PathError{Op: "open", Path: name, Err: primitives.ErrNotRegular}
	case err != nil:
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: primitives.ErrNotRegular}
	}
	if err == nil && flag&os.O_TRUNC != 0 {
		err = f.Truncate(0)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}
