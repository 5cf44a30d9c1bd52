package guest

import (
	"errors"
	"io"
	"sync"
)

// follow writes src as it comes to its end. While one frame is on its way, what
// src yields meanwhile is collected for the next, so that many small writes of a
// command become few frames. An error of src is returned as a *sourceError.
//
// It returns when nothing reads src any more: the caller that makes the stream fail must
// also end src.
func (f *framer) follow(src io.Reader) error {
	c := &collector{}
	c.changed.L = &c.mu
	var reading sync.WaitGroup
	reading.Go(func() { c.collect(src) })
	err := c.sendTo(f)
	reading.Wait()
	return err
}

// fullFrame is the longest frame with its header. With that of yamux it fills whole pages:
// a few bytes more would go on to the host as a piece of their own.
const fullFrame = maxFrame - muxHeader

// collector holds what was read and not yet sent.
type collector struct {
	mu      sync.Mutex
	changed sync.Cond
	pending []byte // a frame: room for its header, then data
	err     error  // of the source
	stopped bool   // no frame follows
}

// collect reads src. The buffer grows with what is read, so that idle streams
// cost little.
func (c *collector) collect(src io.Reader) {
	buf := make([]byte, 4<<10)
	for {
		n, err := src.Read(buf)
		if !c.add(buf[:n], err) || err != nil {
			return
		}
		if n == len(buf) && n < fullFrame-frameHeader {
			buf = make([]byte, min(4*n, fullFrame-frameHeader))
		}
	}
}

// add takes over what was read, and waits while a full frame is pending.
func (c *collector) add(b []byte, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(b) > 0 && !c.stopped {
		if len(c.pending) == 0 {
			c.pending = append(c.pending, make([]byte, frameHeader)...)
		}
		n := min(len(b), fullFrame-len(c.pending))
		c.pending = append(c.pending, b[:n]...)
		b = b[n:]
		c.changed.Signal()
		if len(b) > 0 {
			c.changed.Wait()
		}
	}
	c.err = err
	c.changed.Signal()
	return !c.stopped
}

// sendTo sends what is collected until the source has ended.
func (c *collector) sendTo(f *framer) error {
	var frame []byte
	for {
		var err error
		if frame, err = c.take(frame); len(frame) > 0 {
			appendHeader(frame[:0], frameData, len(frame)-frameHeader)
			if serr := f.send(frame); serr != nil {
				c.stop()
				return serr
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return f.send(appendHeader(nil, frameEnd, 0))
		case err != nil:
			return &sourceError{err}
		}
	}
}

// take waits for something and returns it in exchange for a used buffer.
func (c *collector) take(used []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pending) == 0 && c.err == nil {
		c.changed.Wait()
	}
	frame := c.pending
	c.pending = used[:0]
	c.changed.Signal()
	return frame, c.err
}

func (c *collector) stop() {
	c.mu.Lock()
	c.stopped = true
	c.changed.Signal()
	c.mu.Unlock()
}
