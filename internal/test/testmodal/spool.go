package testmodal

import (
	"context"
	"io"
	"os"
	"sync"
)

// spoolMemory is how much of a stream is kept in memory, in bytes, before a file
// takes it.
const spoolMemory = 64 << 10

// spool keeps a stream of output, from where it can be read at any offset and more
// than once: a writer is never held up by those who read.
type spool struct {
	dir string // where a file is made

	mu    sync.Mutex
	data  []byte
	file  *os.File // has all, unless nil
	size  int64
	ended bool
	grown chan struct{} // closed when there is more, or the end
}

func newSpool(dir string) *spool { return &spool{dir: dir, grown: make(chan struct{})} }

// Write adds to the end.
func (s *spool) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.add(b)
	s.size += int64(n)
	s.wake()
	return n, err
}

// add stores b, in a file from some size on.
func (s *spool) add(b []byte) (int, error) {
	if s.file == nil && len(s.data)+len(b) <= spoolMemory {
		s.data = append(s.data, b...)
		return len(b), nil
	}
	if s.file == nil {
		f, err := nameless(s.dir)
		if err != nil {
			return 0, err
		}
		s.file = f
		if _, err := f.Write(s.data); err != nil {
			return 0, err
		}
		s.data = nil
	}
	return s.file.WriteAt(b, s.size)
}

// nameless makes a file without a name. The caller may be on a thread that is in a
// sandbox, where dir is not: it is made on another one.
func nameless(dir string) (f *os.File, err error) {
	made := make(chan struct{})
	go func() {
		defer close(made)
		if f, err = os.CreateTemp(dir, "spool-"); err == nil {
			err = os.Remove(f.Name())
		}
	}()
	<-made
	return f, err
}

// finish says that there is no more to come.
func (s *spool) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.wake()
}

// free gives the file back; the stream must not be read any more.
func (s *spool) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close()
	}
}

// wake tells those who wait for more; the caller holds the lock.
func (s *spool) wake() {
	close(s.grown)
	s.grown = make(chan struct{})
}

// next reads what there is at an offset, and waits for it. It returns io.EOF at the
// end of a stream that is finished.
func (s *spool) next(ctx context.Context, offset int64, b []byte) (int, error) {
	for {
		n, grown, err := s.read(offset, b)
		if grown == nil {
			return n, err
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// read reads what there is at an offset. If there is nothing yet, it returns what
// tells that there is more.
func (s *spool) read(offset int64, b []byte) (n int, grown <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case offset < s.size && s.file == nil:
		return copy(b, s.data[offset:]), nil, nil
	case offset < s.size:
		n, err = s.file.ReadAt(b[:min(int64(len(b)), s.size-offset)], offset)
		return n, nil, err
	case s.ended:
		return 0, nil, io.EOF
	default:
		return 0, s.grown, nil
	}
}

// tail is the end of what there is, at most n bytes of it.
func (s *spool) tail(n int64) string {
	s.mu.Lock()
	offset := max(0, s.size-n)
	s.mu.Unlock()
	b := make([]byte, n)
	read, _, _ := s.read(offset, b) // what cannot be read is not there
	return string(b[:read])
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
