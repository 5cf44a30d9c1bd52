package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// A frame is one byte of kind, four bytes of length, and that many bytes.
const (
	frameHeader = 5
	// maxFrame is the longest payload of one frame.
	maxFrame = 64 << 10
	// frameMore in the kind says that the message continues in the next frame
	// of the same kind.
	frameMore = 0x80
)

// The kinds of frames. The numbers are part of the protocol.
const (
	frameRequest     byte = 1 + iota // opcode and request; the first of every stream
	frameReply                       // the answer; what it holds depends on the operation
	frameError                       // the answer is an error
	frameData                        // bytes of a file, an archive or a stream
	frameEnd                         // the bytes are complete
	frameItem                        // one of many: list entries, failed files, watch events
	frameStdout                      // standard output of opRun
	frameStderr                      // standard error of opRun
	frameExit                        // the process has exited
	frameSignal                      // to a process
	frameResize                      // to a process
	frameCloseOutput                 // to a process: this output will not be read
	frameCancel                      // to a process: its context is done
	frameClose                       // to a process, and back when it is closed
	framePipe                        // the rest of the data comes through a pipe, followed by the end frame
	frameSync                        // on standard input: the guest echoes it after all earlier input; to a process: a ping
)

// Limits of messages, in bytes.
const (
	maxRequest = 16 << 20 // arguments and environment of a command: more than Linux takes
	maxReply   = 1 << 20
	maxError   = 4*maxErrorText + 1<<10
)

var (
	// errProtocol means that the peer sent something that makes no sense at
	// this point.
	errProtocol = errors.New("the other end broke the guest protocol")
	// errEnded means that the stream ended where it must not.
	errEnded = fmt.Errorf("the stream ended early: %w", io.ErrUnexpectedEOF)
	// errCut means that the stream ended within a frame.
	errCut = fmt.Errorf("the stream was cut off: %w", io.ErrUnexpectedEOF)
)

// framer reads and writes the frames of one stream. One goroutine may read and
// several may write.
type framer struct {
	*yamux.Stream
	session *session

	wmu    sync.Mutex
	queued []byte // to write together with the next frames

	// Guarded by session.mu: the pipe that carries the bulk of the data, if any, and the
	// deadlines of stream and pipe.
	pipe            *os.File
	large           bool // the pipe has a large buffer
	readBy, writeBy time.Time
}

// appendFrame appends a message as one or more frames.
func appendFrame(dst []byte, kind byte, payload []byte) []byte {
	for len(payload) > maxFrame {
		dst = appendHeader(dst, kind|frameMore, maxFrame)
		dst = append(dst, payload[:maxFrame]...)
		payload = payload[maxFrame:]
	}
	dst = appendHeader(dst, kind, len(payload))
	return append(dst, payload...)
}

func appendHeader(dst []byte, kind byte, length int) []byte {
	return binary.BigEndian.AppendUint32(append(dst, kind), uint32(length))
}

// appendLength appends a length of four bytes, for data that is not a frame.
func appendLength(dst []byte, n int) []byte { return binary.BigEndian.AppendUint32(dst, uint32(n)) }

// requestFrame returns the first frame of an operation.
func requestFrame(op opcode, req message) []byte {
	c := codec{buf: append(make([]byte, 0, 256), byte(op))}
	req.code(&c)
	return appendFrame(make([]byte, 0, len(c.buf)+frameHeader), frameRequest, c.buf)
}

// queue keeps frames to be sent together with the next ones.
func (f *framer) queue(frames []byte) {
	f.wmu.Lock()
	f.queued = append(f.queued, frames...)
	f.wmu.Unlock()
}

// send writes frames that are already encoded.
func (f *framer) send(frames []byte) error {
	_, err := f.sendPart(frames)
	return err
}

// sendPart is send, and returns the unsent rest of the frames if it fails.
func (f *framer) sendPart(frames []byte) (left []byte, err error) {
	f.wmu.Lock()
	defer f.wmu.Unlock()
	if len(f.queued) > 0 {
		frames = append(f.queued, frames...)
		f.queued = nil
	}
	// yamux makes one frame of each Write; the other end refuses longer ones.
	for len(frames) > 0 {
		n, err := f.Write(frames[:min(len(frames), maxWrite)])
		frames = frames[n:]
		if err != nil {
			return frames, err
		}
	}
	return nil, nil
}

func (f *framer) sendMessage(kind byte, m message) error {
	return f.send(appendFrame(nil, kind, encode(m)))
}

// sendError answers with an error.
func (f *framer) sendError(err error) error { return f.sendMessage(frameError, toWire(err)) }

// readHeader reads the header of the next frame.
func (f *framer) readHeader() (kind byte, length int, err error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(f.Stream, h[:]); err != nil {
		return 0, 0, streamError(err)
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > maxFrame {
		return 0, 0, fmt.Errorf("%w: a frame of %d bytes", errProtocol, n)
	}
	return h[0], int(n), nil
}

// readMessage reads the next message of at most limit bytes. It allocates memory as the bytes
// arrive, not as they are announced.
func (f *framer) readMessage(limit int) (kind byte, payload []byte, err error) {
	for {
		k, n, err := f.readHeader()
		if err != nil {
			return 0, nil, err
		}
		if payload != nil && k&^frameMore != kind {
			return 0, nil, fmt.Errorf("%w: kind %d inside a message of kind %d", errProtocol, k, kind)
		}
		if len(payload)+n > limit {
			return 0, nil, fmt.Errorf("%w: a message of more than %d bytes", errProtocol, limit)
		}
		kind = k &^ frameMore
		start := len(payload)
		payload = append(payload, make([]byte, n)...)
		if _, err := io.ReadFull(f.Stream, payload[start:]); err != nil {
			return 0, nil, streamError(err)
		}
		if k&frameMore == 0 {
			return kind, payload, nil
		}
		if n == 0 {
			return 0, nil, fmt.Errorf("%w: an empty frame that announces another", errProtocol)
		}
	}
}

// streamError replaces the end of a stream, which is never expected here, by errEnded or
// errCut.
func streamError(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return errEnded
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errCut
	}
	return err
}

// dataReader reads the bytes of data frames up to the end frame. It is an
// io.Reader whose io.EOF means that everything has arrived.
type dataReader struct {
	f    *framer
	left int      // unread bytes of the current frame
	pipe *os.File // carries the data, if not nil
	over bool     // only the end may follow
	err  error
	// onError converts the error of an error frame.
	onError func(*wireError) error
}

func (r *dataReader) Read(p []byte) (int, error) {
	for r.left == 0 && r.err == nil && len(p) > 0 {
		if r.pipe == nil {
			r.next()
			continue
		}
		if n, err := r.pipe.Read(p); n > 0 || err == nil {
			return n, nil
		} else if errors.Is(err, io.EOF) {
			r.f.dropPipe()
			r.pipe, r.over = nil, true
		} else {
			r.err = err
		}
	}
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	n, err := r.f.Read(p[:min(len(p), r.left)])
	r.left -= n
	if err != nil && r.left > 0 {
		r.err = streamError(err)
		return n, r.err
	}
	return n, nil
}

// next reads the next header.
func (r *dataReader) next() {
	kind, n, err := r.f.readHeader()
	switch {
	case err != nil:
		r.err = err
	case kind == frameData && n > 0 && !r.over:
		r.left = n
	case kind == framePipe && n == 0 && !r.over:
		r.pipe, r.err = r.f.takePipe()
	case kind == frameEnd && n == 0:
		r.err = io.EOF
	case kind == frameError:
		r.err = r.readError(n)
	default:
		r.err = fmt.Errorf("%w: a frame of kind %d with %d bytes among data", errProtocol, kind, n)
	}
}

func (r *dataReader) readError(n int) error {
	buf := make([]byte, n)
	if _, err := io.ReadFull(r.f.Stream, buf); err != nil {
		return streamError(err)
	}
	var w wireError
	if err := decode(buf, &w); err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	return r.onError(&w)
}

// errEncoding means that bytes from the peer are malformed.
var errEncoding = errors.New("malformed message")

// codec encodes and decodes by the same field lists, so that both directions
// cannot differ: every code function either appends the value to buf or takes it
// from there. The first error sticks and turns all later calls into no-ops.
type codec struct {
	buf      []byte
	decoding bool
	err      error
}

// message is a value that is sent over the wire.
type message interface{ code(c *codec) }

// encode returns the encoded message.
func encode(m message) []byte {
	c := codec{buf: make([]byte, 0, 128)}
	m.code(&c)
	return c.buf
}

// decode fills m, which must be a zero value. All of b must be used.
func decode(b []byte, m message) error {
	c := codec{buf: b, decoding: true}
	m.code(&c)
	if c.err == nil && len(c.buf) > 0 {
		c.fail()
	}
	return c.err
}

func (c *codec) fail() {
	c.err = errEncoding
	c.buf = nil
}

func (c *codec) uint64(v *uint64) {
	if !c.decoding {
		c.buf = binary.AppendUvarint(c.buf, *v)
		return
	}
	x, n := binary.Uvarint(c.buf)
	if n <= 0 {
		c.fail()
		return
	}
	*v, c.buf = x, c.buf[n:]
}

func (c *codec) int64(v *int64) {
	if !c.decoding {
		c.buf = binary.AppendVarint(c.buf, *v)
		return
	}
	x, n := binary.Varint(c.buf)
	if n <= 0 {
		c.fail()
		return
	}
	*v, c.buf = x, c.buf[n:]
}

func (c *codec) bool(v *bool) {
	var x uint64
	if *v {
		x = 1
	}
	c.uint64(&x)
	if x > 1 {
		c.fail()
	}
	*v = x == 1
}

// size codes the length of a list whose elements take at least one byte each, so that a wrong
// length is noticed before anything is allocated. Nil and empty differ: the encoded value is
// one more than the length, and zero for nil.
func (c *codec) size(length int, isNil bool) (int, bool) {
	var x uint64
	if !isNil {
		x = uint64(length) + 1
	}
	c.uint64(&x)
	if c.decoding && x > uint64(len(c.buf))+1 {
		c.fail()
	}
	if x == 0 || c.err != nil {
		return 0, true
	}
	return int(x - 1), false
}

func (c *codec) bytes(v *[]byte) {
	n, isNil := c.size(len(*v), *v == nil)
	switch {
	case isNil:
	case c.decoding:
		*v = append(make([]byte, 0, n), c.buf[:n]...)
		c.buf = c.buf[n:]
	default:
		c.buf = append(c.buf, *v...)
	}
}

// time keeps the instant, not the location; the zero time stays zero.
func (c *codec) time(v *time.Time) {
	zero := v.IsZero()
	c.bool(&zero)
	if zero {
		return
	}
	sec, nsec := v.Unix(), int64(v.Nanosecond())
	c.int64(&sec)
	c.int64(&nsec)
	if !c.decoding || c.err != nil {
		return
	}
	if nsec < 0 || nsec >= int64(time.Second) {
		c.fail()
		return
	}
	*v = time.Unix(sec, nsec)
}

func codeString[T ~string](c *codec, v *T) {
	n, _ := c.size(len(*v), false)
	if c.decoding {
		*v, c.buf = T(c.buf[:n]), c.buf[n:]
		return
	}
	c.buf = append(c.buf, *v...)
}

func codeInt[T ~int | ~int64](c *codec, v *T) {
	x := int64(*v)
	c.int64(&x)
	if int64(T(x)) != x {
		c.fail()
		return
	}
	*v = T(x)
}

func codeUint[T ~uint8 | ~uint16 | ~uint32](c *codec, v *T) {
	x := uint64(*v)
	c.uint64(&x)
	if uint64(T(x)) != x {
		c.fail()
		return
	}
	*v = T(x)
}

func codeSlice[T any](c *codec, v *[]T, elem func(*codec, *T)) {
	n, isNil := c.size(len(*v), *v == nil)
	if isNil {
		return
	}
	if !c.decoding {
		for i := range *v {
			elem(c, &(*v)[i])
		}
		return
	}
	*v = []T{}
	for range n {
		var x T
		if elem(c, &x); c.err != nil {
			return
		}
		*v = append(*v, x)
	}
}

func codeOptional[T any](c *codec, v **T, value func(*codec, *T)) {
	present := *v != nil
	c.bool(&present)
	if !present || c.err != nil {
		return
	}
	if c.decoding {
		*v = new(T)
	}
	value(c, *v)
}
