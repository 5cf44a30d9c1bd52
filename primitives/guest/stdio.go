package guest

import (
	"errors"
	"io"
	"os"
)

// Stdio joins a reader and a writer, such as the pipes to a child's standard
// streams, into one stream. Closing it closes both.
//
// Closing r must unblock a Read of it, as it does for pipes and sockets that
// this program made. For its own standard streams use [OwnStdio].
func Stdio(r io.ReadCloser, w io.WriteCloser) io.ReadWriteCloser { return &stdio{r, w} }

// OwnStdio is Stdio for a program's own standard streams, usually os.Stdin and
// os.Stdout: it makes pipes and sockets non-blocking; otherwise closing
// them would not unblock a Read. Nothing else may use in and out afterwards.
func OwnStdio(in, out *os.File) (io.ReadWriteCloser, error) {
	r, err := pollable(in)
	if err != nil {
		return nil, err
	}
	w, err := pollable(out)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return Stdio(r, w), nil
}

type stdio struct {
	io.ReadCloser
	w io.WriteCloser
}

// growIn and growOut enlarge the buffers of the streams, if they are pipes, for large amounts
// of data.
func (s *stdio) growIn() {
	if f, ok := s.ReadCloser.(*os.File); ok {
		growPipe(f, largePipe)
	}
}

func (s *stdio) growOut() {
	if f, ok := s.w.(*os.File); ok {
		growPipe(f, largePipe)
	}
}

func (s *stdio) Write(p []byte) (int, error) { return s.w.Write(p) }

func (s *stdio) Close() error { return errors.Join(s.w.Close(), s.ReadCloser.Close()) }
