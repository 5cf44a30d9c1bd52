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
	frameStdout                      // of a run
	frameStderr                      // of a run
	frameExit                        // the process has exited
	frameSignal                      // to a process
	frameResize                      // to a process
	frameCloseOutput                 // to a process: this output will not be read
	frameCancel                      // to a process: its context is done
	frameClose                       // to a process, and back when it is closed
	framePipe                        // the rest of the data comes through a pipe, and then the end
	frameSync                        // on standard input, and back when all before was written; to a process, to hear from it
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
	// errEnded means that the stream ended where that is not its end.
	errEnded = fmt.Errorf("the stream ended early: %w", io.ErrUnexpectedEOF)
)

// framer reads and writes the frames of one stream. One goroutine may read and
// several may write.
type framer struct {
	*yamux.Stream
	session *session

	wmu    sync.Mutex
	queued []byte // to be written together with what comes next

	// Under session.mu: what carries the bulk of the data, if it is not the
	// stream, and the deadlines of both.
	pipe            *os.File
	large           bool // its buffer is
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

// appendLength appends four bytes that say how much follows, where that is no frame.
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

// sendPart is send, and says what is left of the frames when it fails.
func (f *framer) sendPart(frames []byte) (left []byte, err error) {
	f.wmu.Lock()
	defer f.wmu.Unlock()
	if len(f.queued) > 0 {
		frames = append(f.queued, frames...)
		f.queued = nil
	}
	// yamux makes one frame of its own of each Write; the other end refuses
	// longer ones.
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

// readMessage reads the next message of at most limit bytes. Memory is taken as
// the bytes arrive, not as they are announced.
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

// streamError tells the end of a stream, which is never expected, from others.
func streamError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errEnded
	}
	return err
}

// dataReader reads the bytes of data frames up to the end frame. It is an
// io.Reader whose io.EOF means that everything has arrived.
type dataReader struct {
	f    *framer
	left int      // of the current frame
	pipe *os.File // that the data comes through
	over bool     // only the end may follow
	err  error
	// onError makes an error of an error frame.
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
