package guest

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"
)

// session is a yamux session that tracks its streams. When the byte stream ends, it unblocks
// everything that waits on them before yamux notices the end: yamux would let every waiting
// reader and writer spin until its Close has reached their streams, which with hundreds of them
// takes minutes of processor time.
type session struct {
	*yamux.Session
	alive *keepAlive
	guard *guard

	dropped sync.Once

	large atomic.Int32 // pipes with large buffers

	mu    sync.Mutex
	open  map[*framer]struct{}
	files map[uint32][]*os.File // descriptors in transit, by stream
	ended bool
	atEnd func() // called when the session has ended; may be nil
}

// newSession starts yamux on the result of a handshake.
func newSession(a *handshakeResult, host bool, every time.Duration, log hclog.Logger) (*session, error) {
	s := &session{open: make(map[*framer]struct{}), files: make(map[uint32][]*os.File)}
	g := &guard{in: a.in, rw: a.rw, host: host, onEnd: s.unblockAll, claim: s.keep, release: s.claim}
	if lazy, ok := a.rw.(deferringWriter); ok && host {
		g.lazy = lazy
	} else {
		p := newDeferredWriter(a.rw)
		g.rw, g.lazy = p, p
		if !host {
			g.bulk = p.bulk
		}
		if a.work != nil {
			p.busy = func() { a.work(true) }
		}
	}
	if a.pipes != nil {
		g.pass = newRights(a.pipes)
		if !host {
			g.in = g.pass
		}
	}
	s.guard = g
	start := yamux.Server
	if host {
		start = yamux.Client
	}
	mux, err := start(g, muxConfig(host, log))
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

// keep stores the descriptors that go with the next frame of a stream, or that came with the
// last one, until they are claimed. It takes ownership of them.
func (s *session) keep(stream uint32, files []*os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || len(files) == 0 || len(s.files) >= hostileStreams || len(s.files[stream])+len(files) > maxRights {
		closeAll(files)
		return fmt.Errorf("%w: %d descriptors for a frame", errProtocol, len(files))
	}
	s.files[stream] = append(s.files[stream], files...)
	return nil
}

// claim removes and returns the descriptors of a stream.
func (s *session) claim(stream uint32) []*os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := s.files[stream]
	delete(s.files, stream)
	return files
}

// Close ends the session and unblocks everything that waits for it.
func (s *session) Close() error {
	s.unblockAll()
	s.alive.stop()
	err := s.Session.Close()
	s.dropped.Do(s.guard.drop) // no read or write follows
	return err
}

// unblockAll unblocks all waits on streams, now and later.
func (s *session) unblockAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && s.atEnd != nil {
		s.atEnd() // under the lock: a caller that finds the session ended finds this done
	}
	s.ended = true
	for f := range s.open {
		_ = f.SetDeadline(past())
		if f.pipe != nil {
			_ = f.pipe.SetDeadline(past())
		}
	}
	for stream, files := range s.files {
		closeAll(files)
		delete(s.files, stream)
	}
}

// whenEnded calls do when the byte stream has ended. do must not block. Unlike a goroutine,
// this costs nothing until then.
func (s *session) whenEnded(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.atEnd = do; s.ended {
		do()
	}
}

// past returns a deadline in the past.
func past() time.Time { return time.Unix(1, 0) }

// hasEnded reports whether the byte stream has ended, which yamux may not know yet.
func (s *session) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended || s.IsClosed()
}

// inUse reports whether this end has streams that it has not closed. The other end may still
// have some of those open that this end has closed.
func (s *session) inUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open) > 0
}

// framer returns a stream as a framer.
func (s *session) framer(stream *yamux.Stream) *framer {
	f := &framer{Stream: stream, session: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[f] = struct{}{}
	if s.ended {
		_ = stream.SetDeadline(past())
	}
	return f
}

// halfClose closes this end of the stream; data that the other end still sends can be read.
func (f *framer) halfClose() error { return f.Stream.Close() }

// Close closes this end of the stream and stops waiting for it. The stream is gone when the
// other end does the same.
func (f *framer) Close() error {
	f.session.mu.Lock()
	delete(f.session.open, f)
	f.session.mu.Unlock()
	f.dropPipe()
	closeAll(f.session.claim(f.StreamID()))
	return f.Stream.Close()
}

// SetReadDeadline bounds waiting for input.
func (f *framer) SetReadDeadline(t time.Time) error {
	f.session.mu.Lock()
	defer f.session.mu.Unlock()
	if f.session.ended {
		return nil // its deadline is in the past already
	}
	f.readBy = t
	if f.pipe != nil {
		_ = f.pipe.SetReadDeadline(t)
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
	f.writeBy = t
	if f.pipe != nil {
		_ = f.pipe.SetWriteDeadline(t)
	}
	return f.Stream.SetWriteDeadline(t)
}

// keepAliveSteps is the number of steps in which to wait for an answer.
const keepAliveSteps = 4

// keepAlive pings the peer at intervals. yamux's own keep-alive measures with the clock: a
// guest that was frozen for an hour would treat its host as dead when it continues. keepAlive
// counts short waits instead, which stop while the program is frozen.
type keepAlive struct {
	mux   *yamux.Session
	every time.Duration
	lost  func() // called when the peer does not answer

	mu     sync.Mutex
	timer  *time.Timer // nil after the end
	rests  bool
	asked  bool // an answer is outstanding
	missed int  // steps without an answer
}

// newKeepAlive starts the pings, unless every is negative.
func newKeepAlive(mux *yamux.Session, every time.Duration, lost func()) *keepAlive {
	if every == 0 {
		every = defaultKeepAlive
	}
	k := &keepAlive{mux: mux, every: every, lost: lost}
	k.mu.Lock() // step may run first
	defer k.mu.Unlock()
	if every > 0 {
		k.timer = time.AfterFunc(every, k.step)
	}
	return k
}

// step sends a ping, or waits one more step for its answer.
func (k *keepAlive) step() {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.timer == nil || k.rests:
	case !k.asked:
		k.asked, k.missed = true, 0
		go k.ask()
		k.timer.Reset(k.every / keepAliveSteps)
	case k.missed+1 < keepAliveSteps:
		k.missed++
		k.timer.Reset(k.every / keepAliveSteps)
	default:
		k.timer = nil
		go k.lost()
	}
}

// ask sends a ping. It returns when the peer has answered or the session has ended.
func (k *keepAlive) ask() {
	_, err := k.mux.Ping()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = false
	if err == nil && k.timer != nil && !k.rests {
		k.timer.Reset(k.every)
	}
}

// setSuspended stops the pings while the peer is known not to answer, or starts them again.
func (k *keepAlive) setSuspended(rests bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rests, k.missed = rests, 0
	if k.timer == nil {
		return
	}
	k.timer.Stop()
	if !rests {
		k.timer.Reset(k.every / keepAliveSteps)
	}
}

// stop ends the pings for good.
func (k *keepAlive) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
}
