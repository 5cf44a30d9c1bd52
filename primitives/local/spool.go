package local

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// spool is the output file of one stream of a durable command. It keeps up to
// primitives.MaxDurableOutput bytes, and one byte more if output was lost. Losing output does not
// block the command.
type spool struct {
	f    *os.File
	left int64
	buf  []byte
	err  error // of the first write that failed
}

// openSpools opens the files of the two streams.
func openSpools(dir string) (stdout, stderr *spool, err error) {
	var spools [2]*spool
	for i, name := range []string{stdoutFile, stderrFile} {
		f, err := os.OpenFile(filepath.Join(dir, name), unix.O_WRONLY|unix.O_APPEND, 0)
		if err != nil {
			return nil, nil, err
		}
		spools[i] = &spool{f: f, left: primitives.MaxDurableOutput + 1, buf: make([]byte, copyBuffer)}
	}
	return spools[0], spools[1], nil
}

// take copies the output to the file, then closes the file. It returns the error of a write.
func (s *spool) take(o *output) error {
	drain(o, s)
	_ = s.f.Close() // writes were not buffered
	return s.err
}

func (s *spool) space() []byte { return s.buf }

// took returns false if a write fails, for example because the disk is full: the command must not
// continue as if its output were kept.
func (s *spool) took(n int) bool {
	keep := min(int64(n), s.left)
	if keep == 0 {
		return true
	}
	s.left -= keep
	_, s.err = s.f.Write(s.buf[:keep])
	return s.err == nil
}
