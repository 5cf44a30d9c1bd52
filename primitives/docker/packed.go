package docker

import (
	"archive/tar"
	"errors"
	"io"
	"sync"
	"time"
)

// packedFile is the content of the only file in an archive. It ends early when its
// reader is slow.
type packedFile struct {
	body io.ReadCloser
	in   *tar.Reader
	end  func() // of the archive
	pace pace

	mu     sync.Mutex
	left   time.Time // when the reader left; zero while it reads
	idle   *time.Timer
	closed bool
}

// start is for when the reader gets it.
func (f *packedFile) start(end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end, f.left = end, time.Now()
	f.idle = time.AfterFunc(maxWait, f.look)
}

// look ends the archive when the reader has been away for maxWait. Setting the timer anew
// for each of thousands of reads would wake threads that the engine needs.
func (f *packedFile) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	wait := maxWait
	if !f.left.IsZero() {
		wait -= time.Since(f.left)
	}
	switch {
	case f.closed:
	case wait <= 0:
		f.end()
	default:
		f.idle.Reset(wait)
	}
}

// Read implements io.Reader.
func (f *packedFile) Read(p []byte) (int, error) {
	if f.pace.isSlow(f.come()) {
		f.end()
		return 0, errSlow
	}
	n, err := f.in.Read(p) // which fails if look has ended it
	f.leave()
	return n, err
}

// come returns for how long the reader was away.
func (f *packedFile) come() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	away := time.Since(f.left)
	f.left = time.Time{}
	return away
}

func (f *packedFile) leave() {
	f.mu.Lock()
	f.left = time.Now()
	f.mu.Unlock()
}

// Close implements io.Closer. It may be called while Read is.
func (f *packedFile) Close() error {
	f.end()
	f.mu.Lock()
	f.closed = true
	f.idle.Stop() // or it does nothing more
	f.mu.Unlock()
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
