package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Open implements primitives.Files. ctx covers reading, too: when it is done, the next Read returns
// its error.
func (f *FS) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	file, err := f.open(ctx, name)
	if err != nil {
		return nil, f.fail("open", name, err)
	}
	return &reader{fs: f, file: file, name: name, stop: ctx.Err}, nil
}

func (f *FS) open(ctx context.Context, name string) (*os.File, error) {
	if err := f.begin(ctx, name); err != nil {
		return nil, err
	}
	t, err := f.tree(name)
	if err != nil {
		return nil, err
	}
	defer t.close()
	if t.free {
		// The kernel follows the links: those in /proc have no usable target text.
		fd, _, err := openRegular(unix.AT_FDCWD, name, 0)
		return newFile(fd, name, err)
	}
	p, _, err := t.follow(name, false)
	if p.dir >= 0 {
		defer p.close()
	}
	if err != nil {
		return nil, err
	}
	fd, _, err := openRegular(p.dir, p.leaf, unix.O_NOFOLLOW)
	return newFile(fd, name, err)
}

func newFile(fd int, name string, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openRegular opens a regular file for reading and nothing else. It checks the type before opening,
// because merely opening some devices has effects, and again afterwards, because the file may have
// been replaced.
func openRegular(dir int, name string, flags int) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	look := 0
	if flags&unix.O_NOFOLLOW != 0 {
		look = unix.AT_SYMLINK_NOFOLLOW
	}
	if err := unix.Fstatat(dir, name, &st, look); err != nil {
		return -1, st, err
	}
	if err := regular(&st); err != nil {
		return -1, st, err
	}
	fd, err := openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) && flags&unix.O_NOFOLLOW != 0 {
			err = unix.ENOENT // the file has become a link meanwhile
		}
		return -1, st, err
	}
	err = unix.Fstat(fd, &st)
	if err == nil {
		err = regular(&st)
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// reader is an open file whose Read fails when its context is done.
type reader struct {
	fs   *FS
	file *os.File
	name string
	stop func() error
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if err := r.stop(); err != nil {
		return 0, r.fs.fail("read", r.name, err)
	}
	n, err := r.file.Read(p)
	return n, r.wrap(err)
}

// WriteTo implements io.WriterTo, so that io.Copy uses large reads.
func (r *reader) WriteTo(w io.Writer) (int64, error) {
	buf := r.fs.chunks.Get().(*[]byte)
	defer r.fs.chunks.Put(buf)
	var total int64
	for {
		n, err := r.Read(*buf)
		if n > 0 {
			m, werr := w.Write((*buf)[:n])
			total += int64(m)
			if werr != nil {
				return total, werr
			}
			if m < n {
				return total, io.ErrShortWrite
			}
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// Close implements io.Closer. Closing again does nothing.
func (r *reader) Close() error {
	if err := r.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return r.wrap(err)
	}
	return nil
}

func (r *reader) wrap(err error) error {
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return err
	case errors.Is(err, os.ErrClosed):
		return r.fs.fail("read", r.name, fmt.Errorf("%w: the reader was closed", os.ErrClosed))
	}
	return r.fs.fail("read", r.name, err)
}

var _ interface {
	primitives.Files
	primitives.BatchWriter
	primitives.Packer
	primitives.Unpacker
} = (*FS)(nil)
