package main

import (
	"io"
	"sync"
)

// maxBacklog is how many bytes a backlog takes while others are being written.
const maxBacklog = 8 << 20

// backlog writes in the background, so that a slow reader of standard output does not hold
// up a question on the terminal. A write waits while the backlog is full, and fails after a
// write in the background has failed. The zero value is not usable: see newBacklog.
type backlog struct {
	to io.Writer

	mu      sync.Mutex
	room    sync.Cond // on mu: text was taken, or err set
	text    []byte
	writing chan struct{} // closed when all is written; nil: nothing is being written
	err     error
}

func newBacklog(to io.Writer) *backlog {
	b := &backlog{to: to}
	b.room.L = &b.mu
	return b
}

// Write implements io.Writer.
func (b *backlog) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil && len(b.text) >= maxBacklog {
		b.room.Wait()
	}
	if b.err != nil {
		return 0, b.err
	}
	b.text = append(b.text, p...)
	if b.writing == nil {
		b.writing = make(chan struct{})
		go b.drain()
	}
	return len(p), nil
}

// drain writes until nothing is left.
func (b *backlog) drain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil && len(b.text) > 0 {
		text := b.text
		b.text = nil
		b.room.Broadcast()
		b.mu.Unlock()
		_, err := b.to.Write(text)
		b.mu.Lock()
		b.err = err
	}
	b.room.Broadcast()
	close(b.writing)
	b.writing = nil
}

// flush waits until all is written, or for enough.
func (b *backlog) flush(enough <-chan struct{}) error {
	b.mu.Lock()
	writing := b.writing
	b.mu.Unlock()
	if writing != nil {
		select {
		case <-writing:
		case <-enough:
			return nil
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}
