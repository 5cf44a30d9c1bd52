package treecopy

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// fill copies the content of a file of this size: at once where the file system
// can share it, else what lies between the holes.
func fill(ctx context.Context, out, in int, size int64) error {
	if size == 0 {
		return nil
	}
	if unix.IoctlFileClone(out, in) == nil {
		return nil
	}
	for at := int64(0); at < size; {
		from, err := unix.Seek(in, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // only a hole is left
		}
		to := size
		if err == nil {
			to, err = unix.Seek(in, from, unix.SEEK_HOLE)
		} else {
			from = at // the file system knows no holes
			to, err = size, nil
		}
		if err != nil {
			return err
		}
		to = min(to, size)
		if err := copyRange(ctx, out, in, from, to); err != nil {
			return err
		}
		at = max(to, from+1)
	}
	return unix.Ftruncate(out, size)
}
