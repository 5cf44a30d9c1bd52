package docker

import (
	"bufio"
	"encoding/binary"
	"io"
	"os"
	"sync"

	"github.com/docker/docker/pkg/stdcopy"
)

// source reads what an exec prints. Without a terminal the engine sends both
// outputs in frames, see stream.
type source struct {
	r    *bufio.Reader
	raw  bool // a terminal has one output
	kind stdcopy.StdType
	left uint32 // bytes of the frame that is being read
}

// next begins the next frame if there is nothing left of the last.
func (s *source) next() error {
	for !s.raw && s.left == 0 {
		var head [8]byte
		if _, err := io.ReadFull(s.r, head[:]); err != nil {
			return err
		}
		if head[0] > byte(stdcopy.Systemerr) {
			return errFrame
		}
		s.kind, s.left = stdcopy.StdType(head[0]), binary.BigEndian.Uint32(head[4:])
	}
	if s.raw {
		s.kind = stdcopy.Stdout
	}
	return nil
}

// read reads a piece of one of the outputs.
func (s *source) read(p []byte) (n int, kind stdcopy.StdType, err error) {
	if err := s.next(); err != nil {
		return 0, 0, err
	}
	if !s.raw {
		p = p[:min(len(p), int(s.left))]
	}
	n, err = s.r.Read(p)
	if !s.raw {
		s.left -= uint32(n)
	}
	return n, s.kind, err
}

// line reads the first line of standard output. The other output, which the engine
// copies by itself and may send first, goes to errors.
func (s *source) line(errors *output) (string, error) {
	var line []byte
	for len(line) < maxFirstLine {
		if err := s.next(); err != nil {
			return string(line), err
		}
		if s.kind != stdcopy.Stdout {
			piece := make([]byte, s.left)
			n, err := io.ReadFull(s.r, piece)
			s.left = 0
			errors.put(piece[:n])
			if err != nil {
				return string(line), err
			}
			continue
		}
		b, err := s.r.ReadByte()
		if err != nil {
			return string(line), err
		}
		if !s.raw {
			s.left--
		}
		if b == '\n' {
			break
		}
		line = append(line, b)
	}
	return string(line), nil
}

// outputs hold what was read of both outputs until somebody takes it. They come
// over one connection: so when one is full nothing more is read, unless somebody
// waits for the other; then the full one may grow up to its greatest size.
type outputs struct {
	out, err output

	mu    sync.Mutex
	moved sync.Cond
	// lifts counts the reasons to take what comes, up to plainMaxBuffer: that the
	// command is not yet known to run; that the engine does not answer, see inspect.
	lifts int
	// drains says that the command has exited: what the engine still holds is taken,
	// too, which it throws away soon.
	drains bool
	end    error
}

const (
	plainBuffer    = 256 << 10
	plainMaxBuffer = 8 << 20
	// plainUnderWay is more than the engine and the pipes hold of one output.
	plainUnderWay = 4 << 20
)

// output is one of them.
type output struct {
	box     *outputs
	other   *output
	data    []byte
	taken   int // of data
	waiting int // readers
	closed  bool
}

func newOutputs() *outputs {
	o := &outputs{lifts: 1}
	o.moved.L = &o.mu
	o.out.box, o.err.box = o, o
	o.out.other, o.err.other = &o.err, &o.out
	return o
}

// put adds to an output, when there is room.
func (o *output) put(p []byte) {
	b := o.box
	b.mu.Lock()
	defer b.mu.Unlock()
	for o.full() && b.end == nil {
		b.moved.Wait()
	}
	if o.closed || b.end != nil {
		return
	}
	if o.taken > 0 && o.taken == len(o.data) {
		o.data, o.taken = o.data[:0], 0
	}
	o.data = append(o.data, p...)
	b.moved.Broadcast()
}

func (o *output) full() bool {
	limit := plainBuffer
	switch {
	case o.closed:
		return false
	case o.box.drains:
		limit = plainMaxBuffer + plainUnderWay
	case o.box.lifts > 0:
		limit = plainMaxBuffer
	case o.other.waiting > 0 && !o.other.closed:
		limit = plainMaxBuffer
	}
	return len(o.data)-o.taken >= limit
}

// Read takes from the output.
func (o *output) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b := o.box
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		switch {
		case o.closed:
			return 0, os.ErrClosed
		case o.taken < len(o.data):
			n := copy(p, o.data[o.taken:])
			o.taken += n
			if o.taken == len(o.data) && cap(o.data) > plainBuffer {
				o.data, o.taken = nil, 0
			}
			b.moved.Broadcast()
			return n, nil
		case b.end != nil:
			return 0, b.end
		}
		o.waiting++
		b.moved.Broadcast()
		b.moved.Wait()
		o.waiting--
	}
}

// close throws away what it holds and what comes.
func (o *output) close() {
	o.box.mu.Lock()
	defer o.box.mu.Unlock()
	o.closed, o.data, o.taken = true, nil, 0
	o.box.moved.Broadcast()
}

// lift gives a reason to take what comes.
func (o *outputs) lift() {
	o.mu.Lock()
	o.lifts++
	o.moved.Broadcast()
	o.mu.Unlock()
}

// lower takes a reason back.
func (o *outputs) lower() {
	o.mu.Lock()
	o.lifts--
	o.mu.Unlock()
}

// drain is for when the command has exited.
func (o *outputs) drain() {
	o.mu.Lock()
	o.drains = true
	o.moved.Broadcast()
	o.mu.Unlock()
}

// cut ends the outputs after what they hold if one of them is full, and reports
// whether it is.
func (o *outputs) cut(end error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.out.full() && !o.err.full() {
		return false
	}
	if o.end == nil {
		o.end = end
	}
	o.moved.Broadcast()
	return true
}

// finish ends both outputs, once what they hold was read.
func (o *outputs) finish(end error) {
	o.mu.Lock()
	if o.end == nil {
		o.end = end
	}
	o.moved.Broadcast()
	o.mu.Unlock()
}
