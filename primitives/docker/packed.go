package docker

import (
	"archive/tar"
	"errors"
	"io"
	"time"
)

// packedFile is the content of the only file in an archive. It ends early when its
// reader is slow.
type packedFile struct {
	body io.ReadCloser
	in   *tar.Reader
	end  func() // of the archive
	idle *time.Timer
	left time.Time // when the reader left
	pace pace
}

// start is for when the reader gets it.
func (f *packedFile) start(end func()) {
	f.end, f.left = end, time.Now()
	f.idle = time.AfterFunc(maxWait, end)
}

// Read implements io.Reader.
func (f *packedFile) Read(p []byte) (int, error) {
	f.idle.Stop() // or it has ended, and the reading fails
	if f.pace.isSlow(time.Since(f.left)) {
		f.end()
		return 0, errSlow
	}
	n, err := f.in.Read(p)
	f.left = time.Now()
	f.idle.Reset(maxWait)
	return n, err
}

// Close implements io.Closer. It may be called while Read is.
func (f *packedFile) Close() error {
	f.end()
	f.idle.Stop() // or it does nothing more
	return f.body.Close()
}

// maxWait is how long an archive waits for the caller before it is looked at who is
// slow.
const maxWait = time.Second

// pace tells whether an archive mostly waits for the caller. Then the stream is fast
// enough.
type pace struct {
	began  time.Time
	waited time.Duration
}

func startPace() pace { return pace{began: time.Now()} }

// isSlow adds what was waited.
func (p *pace) isSlow(waited time.Duration) bool {
	p.waited += waited
	return p.waited > maxWait && p.waited > time.Since(p.began)/2
}

var errSlow = errors.New("it keeps the engine waiting")
