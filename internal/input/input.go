// Package input opens files of this machine that a user or a configuration names. No file under
// such a name can block the program forever or fill its memory.
package input

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Open opens a regular file for reading. For any other file the error is an *fs.PathError with
// [primitives.ErrNotRegular] or [primitives.ErrIsDirectory].
func Open(name string) (*os.File, error) {
	if err := look(name, false); err != nil {
		return nil, err
	}
	return checked(name, false)(os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0))
}

// OpenIn is like [Open], for a file in root.
func OpenIn(root *os.Root, name string) (*os.File, error) {
	return checked(name, false)(root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0))
}

// OpenStream opens a regular file or a pipe for reading: a named pipe, which may still lack a
// writer, or the pipe of a shell's <(...). When ctx is done, a Read or the wait for a writer
// returns its cause.
func OpenStream(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := look(name, true); err != nil {
		return nil, err
	}
	f, err := checked(name, true)(openPipe(ctx, name))
	if err != nil {
		return nil, err
	}
	return &stream{ctx: ctx, file: f, stop: context.AfterFunc(ctx, func() { _ = f.Close() })}, nil
}

// ReadFile reads a regular file of at most limit bytes. A larger one is
// [primitives.ErrLimit].
func ReadFile(name string, limit int64) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return ReadAll(f, name, limit)
}

// ReadStream reads a file or pipe of at most limit bytes, opened as by [OpenStream].
func ReadStream(ctx context.Context, name string, limit int64) ([]byte, error) {
	f, err := OpenStream(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return ReadAll(f, name, limit)
}

// ReadAll reads r to EOF. More than limit bytes are [primitives.ErrLimit].
func ReadAll(r io.Reader, name string, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("%w: it is larger than %d bytes", primitives.ErrLimit, limit)}
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// IsPipe reports whether name is a pipe or a link to one.
func IsPipe(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode()&fs.ModeNamedPipe != 0
}

// look checks a file before it is opened, because opening alone triggers some devices.
func look(name string, pipes bool) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	return check(name, info, pipes)
}

// checked checks a file again after it was opened, because it may have been replaced since
// look.
func checked(name string, pipes bool) func(*os.File, error) (*os.File, error) {
	return func(f *os.File, err error) (*os.File, error) {
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err == nil {
			err = check(name, info, pipes)
		}
		if err != nil {
			_ = f.Close() // it was only opened
			return nil, err
		}
		return f, nil
	}
}

func check(name string, info fs.FileInfo, pipes bool) error {
	switch mode := info.Mode(); {
	case mode.IsRegular(), pipes && mode&fs.ModeNamedPipe != 0:
		return nil
	case mode.IsDir():
		return &fs.PathError{Op: "open", Path: name, Err: primitives.ErrIsDirectory}
	}
	return &fs.PathError{Op: "open", Path: name, Err: primitives.ErrNotRegular}
}

// openPipe opens a file. For a named pipe without a writer, it waits until ctx is done.
func openPipe(ctx context.Context, name string) (*os.File, error) {
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		file, err := os.Open(name)
		done <- opened{file, err}
	}()
	select {
	case o := <-done:
		return o.file, o.err
	case <-ctx.Done():
	}
	// Opening a writer makes the os.Open above return.
	wake, err := os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, context.Cause(ctx) // the goroutine keeps waiting for a writer
	}
	o := <-done
	_ = wake.Close()
	if o.err == nil {
		_ = o.file.Close()
	}
	return nil, context.Cause(ctx)
}

// stream is an open file that is closed when its context is done.
type stream struct {
	ctx  context.Context //nolint:containedctx // it is that of the open, as documented
	file *os.File
	stop func() bool
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.file.Read(p)
	if err != nil && s.ctx.Err() != nil {
		return n, context.Cause(s.ctx)
	}
	return n, err
}

// Close implements io.Closer.
func (s *stream) Close() error {
	if !s.stop() {
		return nil // the file was closed when ctx was done
	}
	return s.file.Close()
}
