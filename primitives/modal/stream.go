package modal

import (
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// stream is the guest's byte stream: the standard streams of a command in the sandbox. A
// goroutine sends the written data, one call of Modal at a time. Writes during a call are
// coalesced into the next call.
type stream struct {
	in     io.WriteCloser // every Write is a call of Modal
	out    io.ReadCloser
	stderr io.ReadCloser

	mu        sync.Mutex
	change    sync.Cond
	queue     []byte
	urgent    bool // the queue contains data that must not be deferred
	timer     *time.Timer
	err       error // of the last call
	closed    bool
	abandoned bool // the guest has ended: make no more calls
	done      chan struct{}
}

const (
	// maxQueue is the size in bytes at which writers wait for the queue.
	maxQueue = 4 << 20
	// maxCall is how many bytes one call carries at most.
	maxCall = 4 << 20
	// deferDelay is how long [stream.WriteLater] waits for more data.
	deferDelay = 10 * time.Millisecond
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

// Write queues p. It waits only while the queue is full, and fails if an earlier call failed.
func (s *stream) Write(p []byte) (int, error) { return s.push(p, true) }

// WriteLater is a deferred Write, for data that the peer does not wait for: it is coalesced
// with the next write, if that follows soon.
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
	case s.abandoned:
		return len(p), nil
	}
	s.queue = append(s.queue, p...)
	if hurry {
		s.urgent = true
		s.change.Broadcast()
	} else if !s.urgent {
		s.timer.Reset(deferDelay)
	}
	return len(p), nil
}

// wake makes the sender send the deferred data.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.urgent = true
	s.change.Broadcast()
}

// send sends the queue until the stream is closed, and then closes the guest's input.
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
			_ = s.in.Close() // if this fails, the guest ends by itself
			return
		}
		spare = data[:0]
	}
}

// next waits for data to send and returns it. The buffer spare becomes the new queue.
func (s *stream) next(spare []byte) (data []byte, last, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for (!s.urgent || len(s.queue) == 0) && !s.closed {
		s.change.Wait()
	}
	if s.abandoned {
		return nil, false, false
	}
	if cap(spare) > maxQueue {
		spare = nil
	}
	data, s.queue, s.urgent = s.queue, spare, false
	s.change.Broadcast()
	return data, s.closed, true
}

// fail breaks the stream after a failed call. Readers fail, too.
func (s *stream) fail(err error) {
	s.mu.Lock()
	s.err = err
	s.change.Broadcast()
	s.mu.Unlock()
	_ = s.out.Close() // it has nothing to report
}

// Close sends the queued data and EOF in the background. See join to wait for that.
func (s *stream) Close() error {
	s.mu.Lock()
	s.closed = true
	s.timer.Stop()
	s.change.Broadcast()
	s.mu.Unlock()
	return s.out.Close()
}

// abandon discards the queue and all later writes, because the guest has ended. Its output can
// be read to EOF.
func (s *stream) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abandoned = true
	s.queue = nil
	s.change.Broadcast()
}

// join waits until sending has ended, at most for patience: a pending call cannot be cancelled,
// and the SDK retries an unanswered call for a while.
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

// Stderr returns the standard error of a guest that failed, at most maxStderr bytes.
func (s *stream) Stderr() string {
	s.join(sendTimeout)
	timer := time.AfterFunc(stderrTimeout, func() { _ = s.stderr.Close() })
	defer timer.Stop()
	b, _ := io.ReadAll(io.LimitReader(s.stderr, maxStderr))
	_ = s.stderr.Close()
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "?")
}
