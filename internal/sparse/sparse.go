// Package sparse writes files that have holes where their content is zero, so that
// a hole of a file in a sandbox takes no disk where the file is copied to.
package sparse

import (
	"bytes"
	"io"
)

// block is what a hole consists of. Smaller ones save nothing.
const block = 4096

var zeros [block]byte

// File is a file that is new from where it is written on: what is skipped reads as
// zero. It is not open for appending.
type File interface {
	io.Writer
	io.Seeker
	Truncate(size int64) error
}

// Writer writes to a [File] at its offset.
type Writer struct {
	f    File
	hole int64 // bytes of zero that are not written yet
}

// NewWriter returns a writer. It is complete with [Writer.Close].
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

// Close gives the file its size. It does not close the file.
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

// run returns how many bytes at the start of p are alike: empty, or not.
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
