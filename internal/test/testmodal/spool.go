package testmodal

import (
	"context"
	"io"
	"os"
	"sync"
)

// spoolMemory is how many bytes of a stream are kept in memory. Longer streams move to a file.
const spoolMemory = 64 << 10

// spool stores a stream of output. It can be read from any offset, repeatedly. A writer never
// waits for readers.
type spool struct {
	dir string // where the file is created

	mu    sync.Mutex
	data  []byte
	file  *os.File // nil, or has the whole stream
	size  int64
	ended bool
	grown chan struct{} // closed on new data or EOF
}

func newSpool(dir string) *spool { return &spool{dir: dir, grown: make(chan struct{})} }

// Write appends b.
func (s *spool) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.add(b)
	s.size += int64(n)
	s.wake()
	return n, err
}

// add stores b, in memory or in the file.
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

// nameless creates a file without a name. It uses another thread, because the caller's may be
// inside a sandbox, where dir does not exist.
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

// finish marks the end of the stream.
func (s *spool) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.wake()
}

// free closes the file. The stream must not be read any more.
func (s *spool) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close()
	}
}

// wake wakes the readers that wait for more. The caller holds s.mu.
func (s *spool) wake() {
	close(s.grown)
	s.grown = make(chan struct{})
}

// next reads at an offset, and waits for data if necessary. It returns io.EOF at the end of a
// finished stream.
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

// read reads at an offset without waiting. If there is no data yet, it returns a channel that
// is closed on new data or EOF.
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

// tail returns the last n bytes of the stream, or less.
func (s *spool) tail(n int64) string {
	s.mu.Lock()
	offset := max(0, s.size-n)
	s.mu.Unlock()
	b := make([]byte, n)
	read, _, _ := s.read(offset, b) // on an error, return what was read
	return string(b[:read])
}

// drain passes the stream from an offset to send, until EOF.
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
