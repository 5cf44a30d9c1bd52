package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

const (
	// largePipe is the buffer size of a pipe that carries much data.
	largePipe = 1 << 20
	// maxLarge is how many such pipes one session may have at once: the kernel counts their
	// pages against the user that created them.
	maxLarge = 4
	// sustained is how many bytes must have flowed before buffers grow, if the amount of data
	// is not known in advance.
	sustained = 256 << 10
	// copyBuffer is how much to read at once after that, smallCopy before.
	copyBuffer = 128 << 10
	smallCopy  = 32 << 10
)

// chunks pools buffers for a frame of data with room before and after it.
var chunks = sync.Pool{New: func() any { return new([maxFrame + 2*frameHeader]byte) }}

// sendAll writes src as data frames and an end frame; a short source takes one write. It
// returns an error of src as a *sourceError and then writes nothing more. If src has more than
// one frame, sendAll calls big for a pipe that carries the rest; big may return nil.
func (f *framer) sendAll(src io.Reader, big func() *os.File) error {
	buf := chunks.Get().(*[maxFrame + 2*frameHeader]byte)
	defer chunks.Put(buf)
	for {
		n, end, err := fill(buf[frameHeader:frameHeader+maxFrame], src)
		if err != nil {
			return &sourceError{err}
		}
		out := buf[:0]
		if n > 0 {
			out = appendHeader(out, frameData, n)[:frameHeader+n]
		}
		if end {
			out = appendHeader(out, frameEnd, 0)
		} else if w := big(); w != nil {
			return f.sendThrough(w, appendHeader(out, framePipe, 0), src)
		}
		if err := f.send(out); err != nil || end {
			return err
		}
	}
}

// fill reads until p is full or src ends. Unlike io.ReadFull it does not treat an
// io.ErrUnexpectedEOF of src, which means that data was cut off, as the end of src.
func fill(p []byte, src io.Reader) (n int, end bool, err error) {
	for n < len(p) {
		m, err := src.Read(p[n:])
		n += m
		if err == io.EOF {
			return n, true, nil
		}
		if err != nil {
			return n, false, err
		}
	}
	return n, false, nil
}

// sourceError is an error of the data source, not of the connection.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// sendThrough sends the last frames, then the rest of src through the pipe w, which it closes,
// and then the end frame.
func (f *framer) sendThrough(w *os.File, frames []byte, src io.Reader) error {
	f.setPipe(w)
	defer f.dropPipe()
	if err := f.send(frames); err != nil {
		closeAll(f.session.claim(f.StreamID())) // the guest's end of the pipe, if it was not sent
		return err
	}
	f.enlarge()
	way := &pipeWriter{w: w}
	buf := copies.Get().(*[copyBuffer]byte)
	_, err := io.CopyBuffer(way, src, buf[:])
	copies.Put(buf)
	switch {
	case way.err != nil:
		return way.err
	case err != nil:
		return &sourceError{err}
	}
	f.dropPipe() // the other end must see the end of the pipe before the end of the stream
	return f.send(appendHeader(nil, frameEnd, 0))
}

// copies pools buffers of sendThrough.
var copies = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// pipeWriter separates errors of the pipe from errors of the source. It is only an io.Writer, so
// that io.CopyBuffer uses its buffer.
type pipeWriter struct {
	w   *os.File
	err error
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

// setPipe sets the pipe that carries the bulk of the data. The pipe ends with the stream.
func (f *framer) setPipe(pipe *os.File) {
	f.session.mu.Lock()
	defer f.session.mu.Unlock()
	f.pipe = pipe
	_ = pipe.SetReadDeadline(f.readBy)
	_ = pipe.SetWriteDeadline(f.writeBy)
	if f.session.ended {
		_ = pipe.SetDeadline(past())
	}
}

// takePipe returns the pipe. If none is set, it takes the pipe that came with the request.
func (f *framer) takePipe() (*os.File, error) {
	f.session.mu.Lock()
	pipe := f.pipe
	f.session.mu.Unlock()
	if pipe != nil {
		return pipe, nil
	}
	pipe = f.claimPipe()
	if pipe == nil {
		return nil, fmt.Errorf("%w: a pipe that is not there", errProtocol)
	}
	f.setPipe(pipe)
	return pipe, nil
}

// claimPipe returns the pipe that came with the request, or nil.
func (f *framer) claimPipe() *os.File {
	files := f.session.claim(f.StreamID())
	if len(files) != 1 {
		closeAll(files)
		return nil
	}
	pipe, err := pollable(files[0])
	if err != nil {
		closeAll(files)
		return nil
	}
	return pipe
}

// enlarge gives the pipe a large buffer, unless maxLarge pipes have one.
func (f *framer) enlarge() {
	f.session.mu.Lock()
	defer f.session.mu.Unlock()
	if f.pipe != nil && !f.large && f.session.mayGrow() {
		f.large = true
		growPipe(f.pipe, largePipe)
	}
}

// dropPipe closes the pipe if there is one.
func (f *framer) dropPipe() {
	f.session.mu.Lock()
	defer f.session.mu.Unlock()
	if f.pipe == nil {
		return
	}
	_ = f.pipe.Close() // the end frame says whether everything arrived
	f.pipe = nil
	if f.large {
		f.large = false
		f.session.large.Add(-1)
	}
}

// mayGrow reserves one of the maxLarge large buffers and reports whether one was free.
func (s *session) mayGrow() bool {
	if s.large.Add(1) <= maxLarge {
		return true
	}
	s.large.Add(-1)
	return false
}

// copyAll copies r to w, with a larger buffer than io.Copy once sustained bytes were copied.
func copyAll(w io.Writer, r io.Reader) (total int64, err error) {
	buf := make([]byte, smallCopy)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			written, werr := w.Write(buf[:n])
			total += int64(written)
			if werr != nil {
				return total, werr
			}
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if total >= sustained && len(buf) < copyBuffer {
			buf = make([]byte, copyBuffer)
		}
	}
}

// follow sends src as it arrives, to its end. While it sends one frame, it collects the bytes
// of src for the next, so that many small writes of a command become few frames. It returns an
// error of src as a *sourceError.
//
// It returns only when nothing reads src any more: a caller that makes the stream fail must
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

// fullFrame is the longest frame with its header. With the yamux header it fills whole pages: a
// few bytes more would reach the host as a separate piece.
const fullFrame = maxFrame - muxHeader

// collector holds bytes that were read and not yet sent.
type collector struct {
	mu      sync.Mutex
	changed sync.Cond
	pending []byte // a frame: room for its header, then data
	err     error  // of the source
	stopped bool   // no frame follows
}

// collect reads src to its end. The buffer grows with the data, so that idle streams need
// little memory.
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

// add appends b to the pending frame and waits while that is full. It reports whether the
// collector still takes data.
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

// sendTo sends the collected bytes until the source has ended.
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

// take waits for pending bytes and returns them. used becomes the next buffer.
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
