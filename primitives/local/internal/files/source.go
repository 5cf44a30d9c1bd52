package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
)

// source reads from a reader of the caller, until a context is done or the FS is closed. It then
// returns at once, even if a Read of the caller's reader blocks.
type source struct {
	ctx  context.Context //nolint:containedctx // it lives as long as one call
	f    *FS
	r    io.Reader
	buf  *[]byte // the buffer for reads of r
	left []byte  // the unread part of buf
	err  error   // to return after left
}

// sourceError is an error of the caller's reader.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read the content to write: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// source returns r as a reader whose errors, except io.EOF, are a *sourceError. It returns r itself
// if r never blocks.
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

// next reads the next piece. It returns early if the write must stop.
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
	s.buf = nil // the blocked Read still uses it
	return s.f.stopped(s.ctx)
}

func (s *source) release() {
	if s.buf != nil {
		s.f.chunks.Put(s.buf)
	}
}
