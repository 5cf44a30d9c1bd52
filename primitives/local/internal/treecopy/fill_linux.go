package treecopy

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// fill copies the content of a file of this size. It shares the data if the file system can, else
// it copies what is between the holes.
func fill(ctx context.Context, out, in int, size int64) error {
	if size == 0 {
		return nil
	}
	if unix.IoctlFileClone(out, in) == nil {
		return nil
	}
	for at := int64(0); at < size; {
		from, to := at, size // used if the file system cannot find holes
		if data, err := unix.Seek(in, at, unix.SEEK_DATA); err == nil {
			if to, err = unix.Seek(in, data, unix.SEEK_HOLE); err != nil {
				return err
			}
			from = data
		} else if errors.Is(err, unix.ENXIO) {
			break // the rest is a hole
		}
		to = min(to, size)
		if err := copyRange(ctx, out, in, from, to); err != nil {
			return err
		}
		at = max(to, from+1)
	}
	return unix.Ftruncate(out, size)
}
