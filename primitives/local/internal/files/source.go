package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
)

// source is a reader of the caller that ends with a context and with the FS, also while
// a Read of it blocks. That Read is not waited for.
type source struct {
	ctx  context.Context //nolint:containedctx // it lives as long as one call
	f    *FS
	r    io.Reader
	buf  *[]byte // that r is read into
	left []byte  // of buf
	err  error   // that comes behind it
}

// sourceError is an error of the caller's reader.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read the content to write: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// source returns what r holds as a reader whose errors are a *sourceError, but io.EOF. r
// itself is returned if it never blocks.
func (f *FS) source(ctx context.Context, r io.Reader) (io.Reader, func()) {
	switch r.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		return r, func() {}
	}
	s := &source{ctx: ctx, f: f, r: r}
	return s, s.release
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	if err := s.f.stopped(s.ctx); err != nil {
		return 0, err
	}
	if len(s.left) == 0 && s.err == nil {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.left)
	if s.left = s.left[n:]; len(s.left) == 0 && n < len(p) {
		return n, s.err
	}
	return n, nil
}

// stopped returns why the write must stop, or nil.
func (f *FS) stopped(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-f.done:
		return errClosed()
	default:
	}
	if f.cfg.Gone != nil {
		return f.cfg.Gone()
	}
	return nil
}

// next reads the next piece, unless it is not to be awaited any more.
func (s *source) next() error {
	if s.buf == nil {
		s.buf = s.f.chunks.Get().(*[]byte)
	}
	type piece struct {
		n   int
		err error
	}
	done, buf := make(chan piece, 1), *s.buf
	go func() {
		n, err := s.r.Read(buf)
		done <- piece{n, err}
	}()
	select {
	case got := <-done:
		if s.left, s.err = buf[:got.n], got.err; got.err != nil && !errors.Is(got.err, io.EOF) {
			s.err = &sourceError{got.err}
		}
		return nil
	case <-s.ctx.Done():
	case <-s.f.done:
	}
	s.buf = nil // it is still read into
	return s.f.stopped(s.ctx)
}

func (s *source) release() {
	if s.buf != nil {
		s.f.chunks.Put(s.buf)
	}
}
