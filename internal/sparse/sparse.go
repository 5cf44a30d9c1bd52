// Package sparse writes files with holes in place of zeros, so that copying a sparse file out
// of a sandbox does not fill the disk.
package sparse

import (
	"bytes"
	"io"
)

// block is the unit of holes, in bytes. Smaller holes save nothing.
const block = 4096

var zeros [block]byte

// File is a file without content beyond its offset: skipped ranges must read as zero. It must
// not be open for appending.
type File interface {
	io.Writer
	io.Seeker
	Truncate(size int64) error
}

// Writer writes to a [File] at its offset.
type Writer struct {
	f    File
	hole int64 // zero bytes that are not written yet
}

// NewWriter returns a writer to f. The caller must call [Writer.Close] to complete the file.
func NewWriter(f File) *Writer { return &Writer{f: f} }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		empty, n := run(p[done:])
		if empty {
			w.hole += int64(n)
			done += n
			continue
		}
		if err := w.skip(); err != nil {
			return done, err
		}
		m, err := w.f.Write(p[done : done+n])
		if done += m; err != nil {
			return done, err
		}
	}
	return done, nil
}

// Close sets the size of the file if it ends with a hole. It does not close the file.
func (w *Writer) Close() error {
	if w.hole == 0 {
		return nil
	}
	at, err := w.f.Seek(w.hole, io.SeekCurrent)
	w.hole = 0
	if err != nil {
		return err
	}
	return w.f.Truncate(at)
}

func (w *Writer) skip() error {
	if w.hole == 0 {
		return nil
	}
	_, err := w.f.Seek(w.hole, io.SeekCurrent)
	w.hole = 0
	return err
}

// run returns the length of the run of blocks at the start of p that are all zero, or all not.
func run(p []byte) (empty bool, n int) {
	for n < len(p) {
		piece := p[n:min(len(p), n+block)]
		if is := bytes.Equal(piece, zeros[:len(piece)]); n == 0 {
			empty = is
		} else if is != empty {
			break
		}
		n += len(piece)
	}
	return empty, n
}
