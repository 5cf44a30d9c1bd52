package term

import (
	"errors"
	"io"
	"sync"
)

// maxBacklog is how many bytes a backlog buffers while earlier bytes are being written.
const maxBacklog = 8 << 20

// errNotRead is the error of a write that gives up because no program reads the output.
var errNotRead = errors.New("standard output is not read")

// backlog writes in the background, so that a slow reader of standard output does not delay a
// question on the terminal. While the backlog is full, Write waits for room until enough is
// closed. Write fails after a write in the background has failed. The zero value is not usable;
// see newBacklog.
type backlog struct {
	to     io.Writer
	enough <-chan struct{} // once closed, writes to a full backlog fail; may be nil

	mu      sync.Mutex
	room    chan struct{} // closed when there is room or err is set; nil if no write waits
	text    []byte
	writing chan struct{} // closed when all text is written; nil if nothing is being written
	err     error
}

func newBacklog(to io.Writer, enough <-chan struct{}) *backlog {
	b := &backlog{to: to, enough: enough}
	return b
}

// Write implements io.Writer.
func (b *backlog) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil && len(b.text) >= maxBacklog {
		if err := b.awaitRoom(); err != nil {
			return 0, err
		}
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

// awaitRoom waits until there may be room. If enough is closed first, it returns errNotRead. The
// caller holds mu, which awaitRoom unlocks while it waits.
func (b *backlog) awaitRoom() error {
	if b.room == nil {
		b.room = make(chan struct{})
	}
	room := b.room
	b.mu.Unlock()
	defer b.mu.Lock()
	select {
	case <-room:
		return nil
	case <-b.enough:
		return errNotRead
	}
}

// wake wakes the writes that wait for room. The caller holds mu.
func (b *backlog) wake() {
	if b.room != nil {
		close(b.room)
		b.room = nil
	}
}

// drain writes text until none is left or a write fails.
func (b *backlog) drain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil && len(b.text) > 0 {
		text := b.text
		b.text = nil
		b.wake()
		b.mu.Unlock()
		_, err := b.to.Write(text)
		b.mu.Lock()
		b.err = err
	}
	b.wake()
	close(b.writing)
	b.writing = nil
}

// flush waits until all text is written, and returns the error of writing. If enough is closed
// first, it returns nil.
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
