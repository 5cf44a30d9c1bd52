package testmodal

import (
	"context"
	"io"
	"os"
	"sync"
)

// spool keeps a stream of output in a file, from where it can be read at any
// offset and more than once: a writer is never held up by those who read.
type spool struct {
	file *os.File

	mu    sync.Mutex
	size  int64
	ended bool
	grown chan struct{} // closed when there is more, or the end
}

// newSpool keeps its file in dir without a name, so nothing is left of it.
func newSpool(dir string) (*spool, error) {
	f, err := os.CreateTemp(dir, "spool-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return &spool{file: f, grown: make(chan struct{})}, nil
}

// Write adds to the end.
func (s *spool) Write(b []byte) (int, error) {
	n, err := s.file.WriteAt(b, s.size)
	s.change(func() { s.size += int64(n) })
	return n, err
}

// finish says that there is no more to come.
func (s *spool) finish() { s.change(func() { s.ended = true }) }

func (s *spool) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.grown)
	s.grown = make(chan struct{})
}

// next reads what there is at an offset, and waits for it. It returns io.EOF at the
// end of a stream that is finished.
func (s *spool) next(ctx context.Context, offset int64, b []byte) (int, error) {
	for {
		s.mu.Lock()
		size, ended, grown := s.size, s.ended, s.grown
		s.mu.Unlock()
		if offset < size {
			n, err := s.file.ReadAt(b[:min(int64(len(b)), size-offset)], offset)
			if n > 0 {
				err = nil
			}
			return n, err
		}
		if ended {
			return 0, io.EOF
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// drain passes everything from an offset to send, to the end of the stream.
func (s *spool) drain(ctx context.Context, offset int64, send func(data []byte, offset int64) error) error {
	b := make([]byte, 256<<10)
	for {
		n, err := s.next(ctx, offset, b)
		if err == io.EOF { //nolint:errorlint // next returns it as it is
			return nil
		}
		if err != nil {
			return err
		}
		if err := send(b[:n], offset); err != nil {
			return err
		}
		offset += int64(n)
	}
}
