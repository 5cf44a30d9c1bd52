package guest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Bypass carries the contents of large files beside the stream, for a backend that
// has a faster way into the sandbox and out of it. It is only used while the guest
// has not moved to a socket, where nothing is faster.
//
// What may be written and read, and where, stays the guest's business: it says into
// which folder a file is to be put, and what has become of the one that it has
// opened. Whatever does not work by a Bypass goes over the stream.
type Bypass struct {
	// MinSize is the size in bytes from which on it is worth while.
	MinSize int64
	// Mounts are paths in the sandbox: Get sees what is in the same mounted file
	// systems as they are, and may not see what is in others.
	Mounts []string
	// Put makes a file with what it reads from content, which has size bytes or an
	// error. It must return soon after ctx is done or content has failed, but
	// not before nothing is written any more. When it fails it may leave a part.
	Put func(ctx context.Context, to Staged, content io.Reader, size int64) error
	// Get reads a file. It fails when there is another one than the guest has
	// described. ctx covers the reading, too. Close must end it, and may be called
	// while Read is. What breaks off goes on over the stream.
	Get func(ctx context.Context, file Located) (io.ReadCloser, error)
}

// Staged is where Bypass.Put is to put a file, and whose it is to be. Only its owner
// may be able to use it.
type Staged struct {
	Dir, Name string // an absolute path, and a new name in it
	UID, GID  int
}

// Located is a regular file that the guest has opened.
type Located struct {
	Path    string // absolute, and without links
	Size    int64
	ModTime time.Time
}

// byway is what a Client knows of its Bypass.
type byway struct {
	mu sync.Mutex
	// old: the guest is one that knows of none. deaf: what Put puts does not arrive;
	// proven: it does.
	old, deaf, proven bool
}

// bypass returns the Bypass if there is one to use.
func (c *Client) bypass() *Bypass {
	c.byway.mu.Lock()
	defer c.byway.mu.Unlock()
	if c.byway.old {
		return nil
	}
	return c.cfg.Bypass
}

// forgetBypass is for a guest that knows of none.
func (c *Client) forgetBypass() {
	c.byway.mu.Lock()
	defer c.byway.mu.Unlock()
	c.byway.old = true
}

// proof says whether Put has been tried, and whether it works.
func (c *Client) proof() (tried, works bool) {
	c.byway.mu.Lock()
	defer c.byway.mu.Unlock()
	return c.byway.deaf || c.byway.proven, c.byway.proven
}

func (c *Client) prove(works bool) {
	c.byway.mu.Lock()
	defer c.byway.mu.Unlock()
	c.byway.proven, c.byway.deaf = works, !works
}

// source is what is to be written, if it can tell how much that is and begin anew.
type source struct {
	io.Reader
	size   int64
	rewind func() error
}

// sourceOf returns what r is a source of, or false.
func sourceOf(r io.Reader) (source, bool) {
	switch r := r.(type) {
	case *bytes.Buffer:
		return sourceOf(bytes.NewReader(r.Next(r.Len())))
	case *io.LimitedReader:
		return sourceOfLimited(r)
	case *os.File:
		if info, err := r.Stat(); err != nil || !info.Mode().IsRegular() {
			return source{}, false // also one whose end only reading finds
		}
	}
	s, ok := r.(io.ReadSeeker)
	if !ok {
		return source{}, false
	}
	start, err := s.Seek(0, io.SeekCurrent)
	if err != nil {
		return source{}, false
	}
	end, err := s.Seek(0, io.SeekEnd)
	rewind := func() error {
		_, err := s.Seek(start, io.SeekStart)
		return err
	}
	if rerr := rewind(); rerr != nil {
		// Whoever reads on gets this error.
		return source{Reader: failing{rerr}}, true
	}
	return source{s, end - start, rewind}, err == nil
}

// sourceOfLimited is for the beginning of another source.
func sourceOfLimited(l *io.LimitedReader) (source, bool) {
	if _, spent := l.R.(*bytes.Buffer); spent {
		return source{}, false // it would be emptied beyond the limit
	}
	inner, ok := sourceOf(l.R)
	if !ok || inner.rewind == nil {
		return inner, ok
	}
	limit := max(l.N, 0)
	return source{l, min(limit, inner.size), func() error {
		l.N = limit
		return inner.rewind()
	}}, true
}

// failing is a reader that has failed.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// exactly is the beginning of a source, of exactly the size that it had: its end before that is an
// error. stop ends the reading, which others may be slow to notice.
type exactly struct {
	done func() error // says why nobody wants it any more

	mu      sync.Mutex
	r       io.Reader
	left    int64
	stopped bool
	failed  error // of r
}

// Read implements io.Reader.
func (e *exactly) Read(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch err := e.done(); {
	case err != nil:
		return 0, err
	case e.stopped:
		return 0, os.ErrClosed
	case e.failed != nil:
		return 0, e.failed
	case e.left == 0:
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	switch {
	case err == io.EOF && e.left > 0: //nolint:errorlint // as the readers of the standard library do
		err = fmt.Errorf("%w: it has become shorter", io.ErrUnexpectedEOF)
	case err == io.EOF: //nolint:errorlint // the same
		err = nil
	case err != nil:
		e.failed = err
	}
	return n, err
}

// stop returns when r is not read any more, with the error that it had.
func (e *exactly) stop() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	return e.failed
}
