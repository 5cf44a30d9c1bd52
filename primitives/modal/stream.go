package modal

import (
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// stream is the guest's byte stream: the standard streams of a command in the
// sandbox. What is written is sent by a goroutine, one call of Modal at a time, and
// what is written meanwhile goes with the next call, so that a call carries as much
// as there is.
type stream struct {
	in     io.WriteCloser // every Write is a call of Modal
	out    io.ReadCloser
	stderr io.ReadCloser

	mu     sync.Mutex
	change sync.Cond
	queue  []byte
	hurry  bool // something of the queue is not to wait
	timer  *time.Timer
	err    error // of the last call
	closed bool
	deaf   bool // no more calls: the guest is no more
	done   chan struct{}
}

const (
	// maxQueue is how much waits to be sent before writers wait.
	maxQueue = 4 << 20
	// maxCall is how much one call carries at most.
	maxCall = 4 << 20
	// laziness is how long [stream.WriteLater] waits for company.
	laziness = 10 * time.Millisecond
)

func newStream(in io.WriteCloser, out, stderr io.ReadCloser) *stream {
	s := &stream{in: in, out: out, stderr: stderr, done: make(chan struct{})}
	s.change.L = &s.mu
	s.timer = time.AfterFunc(time.Hour, s.wake)
	s.timer.Stop()
	go s.send()
	return s
}

func (s *stream) Read(p []byte) (int, error) { return s.out.Read(p) }

// Write queues p. It waits only if there is no room, and fails if an earlier call
// has.
func (s *stream) Write(p []byte) (int, error) { return s.push(p, true) }

// WriteLater is Write for what the other end does not wait for: it goes with what is
// written next, if that is soon.
func (s *stream) WriteLater(p []byte) (int, error) { return s.push(p, false) }

func (s *stream) push(p []byte, hurry bool) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) >= maxQueue && s.err == nil && !s.closed {
		s.change.Wait()
	}
	switch {
	case s.err != nil:
		return 0, s.err
	case s.closed:
		return 0, net.ErrClosed
	case s.deaf:
		return len(p), nil
	}
	s.queue = append(s.queue, p...)
	if hurry {
		s.hurry = true
		s.change.Broadcast()
	} else if !s.hurry {
		s.timer.Reset(laziness)
	}
	return len(p), nil
}

// wake starts to send the queue.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hurry = true
	s.change.Broadcast()
}

// send sends the queue until the stream is closed and then the end of it.
func (s *stream) send() {
	defer close(s.done)
	var spare []byte
	for {
		data, last, ok := s.next(spare)
		if !ok {
			return
		}
		for chunk := range slices.Chunk(data, maxCall) {
			if _, err := s.in.Write(chunk); err != nil {
				s.fail(err)
				return
			}
		}
		if last {
			_ = s.in.Close() // the guest ends by itself if it never hears of it
			return
		}
		spare = data[:0]
	}
}

// next waits for something to send. The queue goes on in the spare buffer.
func (s *stream) next(spare []byte) (data []byte, last, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for (!s.hurry || len(s.queue) == 0) && !s.closed {
		s.change.Wait()
	}
	if s.deaf {
		return nil, false, false
	}
	if cap(spare) > maxQueue {
		spare = nil
	}
	data, s.queue, s.hurry = s.queue, spare, false
	s.change.Broadcast()
	return data, s.closed, true
}

// fail is for when the way to the guest is broken: readers learn it, too.
func (s *stream) fail(err error) {
	s.mu.Lock()
	s.err = err
	s.change.Broadcast()
	s.mu.Unlock()
	_ = s.out.Close() // it has nothing to report
}

// Close sends what is queued and the end of the stream, and does not wait for that:
// see join.
func (s *stream) Close() error {
	s.mu.Lock()
	s.closed = true
	s.timer.Stop()
	s.change.Broadcast()
	s.mu.Unlock()
	return s.out.Close()
}

// abandon throws away what is written from now on, for a guest that is no more. What
// it has said can be read to its end.
func (s *stream) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = true
	s.queue = nil
	s.change.Broadcast()
}

// join waits until nothing is sent any more, at most for patience: a call under way
// cannot be cancelled, and the SDK retries it for a while without an answer.
func (s *stream) join(patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
	}
}

const (
	maxStderr     = 4 << 10
	stderrTimeout = 2 * time.Second
)

// Stderr returns what a guest that failed has written on standard error.
func (s *stream) Stderr() string {
	s.join(sendTimeout)
	timer := time.AfterFunc(stderrTimeout, func() { _ = s.stderr.Close() })
	defer timer.Stop()
	b, _ := io.ReadAll(io.LimitReader(s.stderr, maxStderr))
	_ = s.stderr.Close()
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "?")
}
