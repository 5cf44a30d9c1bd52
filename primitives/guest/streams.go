package guest

import (
	"io"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"
)

// session is a yamux session that knows its streams. When the byte stream ends
// it wakes whatever waits on them before yamux learns of it: yamux would let
// every waiting reader and writer spin until its Close has got round to their
// streams, which with hundreds of them takes minutes of processor time.
type session struct {
	*yamux.Session
	alive *keepAlive

	mu    sync.Mutex
	open  map[*yamux.Stream]struct{}
	ended bool
}

// newSession starts yamux on rw; in is what to read instead of it.
func newSession(in io.Reader, rw io.ReadWriteCloser, host bool, every time.Duration, log hclog.Logger) (*session, error) {
	s := &session{open: make(map[*yamux.Stream]struct{})}
	g := &guard{in: in, rw: rw, host: host, onEnd: s.wake}
	start := yamux.Server
	if host {
		start = yamux.Client
	}
	mux, err := start(g, muxConfig(log))
	if err != nil {
		return nil, err
	}
	s.Session = mux
	s.alive = newKeepAlive(mux, every, func() {
		log.Debug("the other end does not answer")
		_ = s.Close()
	})
	return s, nil
}

// Close ends the session and all that waits for it.
func (s *session) Close() error {
	s.wake()
	s.alive.stop()
	return s.Session.Close()
}

// wake ends every wait on a stream, now and later.
func (s *session) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	past := time.Unix(1, 0)
	for stream := range s.open {
		_ = stream.SetDeadline(past)
	}
}

// hasEnded reports whether the byte stream has ended, which yamux may not know yet.
func (s *session) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended || s.IsClosed()
}

// framer returns a stream as a framer.
func (s *session) framer(stream *yamux.Stream) *framer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[stream] = struct{}{}
	if s.ended {
		_ = stream.SetDeadline(time.Unix(1, 0))
	}
	return &framer{Stream: stream, session: s}
}

// halfClose closes this end of the stream; what the other end still sends can
// be read.
func (f *framer) halfClose() error { return f.Stream.Close() }

// Close closes this end of the stream and gives it up: nothing waits for it any
// more. The stream is gone when the other end does the same.
func (f *framer) Close() error {
	f.session.mu.Lock()
	delete(f.session.open, f.Stream)
	f.session.mu.Unlock()
	return f.Stream.Close()
}

// SetReadDeadline bounds waiting for input.
func (f *framer) SetReadDeadline(t time.Time) error {
	f.session.mu.Lock()
	defer f.session.mu.Unlock()
	if f.session.ended {
		return nil // it has a deadline already
	}
	return f.Stream.SetReadDeadline(t)
}

// SetWriteDeadline bounds waiting for the other end's window.
func (f *framer) SetWriteDeadline(t time.Time) error {
	f.session.mu.Lock()
	defer f.session.mu.Unlock()
	if f.session.ended {
		return nil
	}
	return f.Stream.SetWriteDeadline(t)
}
