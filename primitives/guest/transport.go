package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"
)

const (
	// maxStreams is how many streams a host opens at once. The host counts them without
	// locking, and the guest sees some of them a little longer, so the guest ends the session
	// only beyond hostileStreams.
	maxStreams     = 1024
	hostileStreams = 2 * maxStreams
	unseenStreams  = 64
	// maxWrite is the longest yamux frame: a data frame of ours, its header and
	// an end frame.
	maxWrite = maxFrame + 64
	// window is how many bytes of a stream may be in transit. It bounds the memory of an unread
	// stream and, on a connection with high latency, its speed.
	window = 1 << 20
	// defaultKeepAlive is both how often a ping is sent and how long its answer
	// may take.
	defaultKeepAlive = 30 * time.Second
	// closeTimeout is how long a stream waits for the other end to close it, too.
	closeTimeout = 30 * time.Second
)

// muxConfig returns yamux's configuration. yamux itself has no timeout for a silent peer:
// keepAlive ends the session if the peer is dead.
func muxConfig(host bool, log hclog.Logger) *yamux.Config {
	c := yamux.DefaultConfig()
	// The guest's backlog is never full within the limit. The host's backlog is memory of every
	// idle session, and bounds how many streams the host may open before the guest has seen the
	// first of them.
	c.AcceptBacklog = 2 * hostileStreams
	if host {
		c.AcceptBacklog = unseenStreams
	}
	c.MaxStreamWindowSize = window
	c.StreamOpenTimeout = 0
	c.StreamCloseTimeout = closeTimeout
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = 365 * 24 * time.Hour
	c.LogOutput = nil
	c.Logger = log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Trace})
	return c
}

// yamux's frame header: version, type, flags (2), stream (4), length (4).
const (
	muxHeader = 12

	muxData   = 0
	muxWindow = 1
	muxPing   = 2
	muxGoAway = 3

	muxSYN = 1
	muxACK = 2
	muxFIN = 4
	// muxRights in the flags, which yamux ignores, says that descriptors come with the frame.
	muxRights = 1 << 15
)

// Limits for the pings of a peer: a burst, then one a second.
const (
	pingBurst    = 16
	pingInterval = time.Second
)

// guard stands between yamux and the byte stream. It refuses what yamux would accept from a
// hostile peer: long frames (yamux allocates what a header announces), streams opened by the
// guest (they would stay in the host's memory for ever), floods of pings (yamux starts a
// goroutine for each). It also joins the small writes that yamux makes for one operation.
//
// yamux reads and writes from one goroutine each.
type guard struct {
	in   io.Reader
	rw   io.ReadWriteCloser
	host bool
	// onEnd is called before yamux learns that the byte stream has ended; it
	// may be called again.
	onEnd func()
	// lazy is rw, which can defer writes.
	lazy deferringWriter
	// bulk is called in a guest when much data arrives, so that deferred frames are sent: the
	// host cannot continue before it receives those for its stream. It may be nil.
	bulk func()
	// pass passes descriptors to the guest; nil if the stream cannot.
	pass *rights
	// claim stores the descriptors that came with a frame for its stream. release returns those
	// to send with the next frame.
	claim   func(stream uint32, files []*os.File) error
	release func(stream uint32) []*os.File

	head  [muxHeader]byte
	have  int    // bytes of head
	body  uint32 // bytes until the next header
	pings int
	since time.Time // of the ping count

	held     []byte     // written by yamux, not yet to the stream
	heldBody bool       // the next write is the body that held announces
	heldPass []*os.File // to pass with held
}

// errLost means that the byte stream broke. This is an ordinary end: the peer may have
// disconnected while data was in transit to it.
var errLost = errors.New("the byte stream broke")

// lost reports the end of the byte stream to onEnd, and wraps all errors but io.EOF in errLost.
func (g *guard) lost(err error) error {
	if err == nil {
		return nil
	}
	g.onEnd()
	if errors.Is(err, io.EOF) {
		return err
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

func (g *guard) Read(p []byte) (int, error) {
	n, err := g.in.Read(p)
	if bad := g.inspect(p[:n]); bad != nil {
		g.onEnd()
		return 0, bad
	}
	return n, g.lost(err)
}

// inspect follows the yamux frames in the bytes read.
func (g *guard) inspect(p []byte) error {
	for len(p) > 0 {
		if g.body > 0 {
			n := min(uint32(len(p)), g.body)
			g.body -= n
			p = p[n:]
			continue
		}
		n := copy(g.head[g.have:], p)
		g.have += n
		p = p[n:]
		if g.have < muxHeader {
			return nil
		}
		g.have = 0
		if err := g.header(); err != nil {
			return err
		}
	}
	return nil
}

// header checks the header of a yamux frame.
func (g *guard) header() error {
	kind, flags := g.head[1], binary.BigEndian.Uint16(g.head[2:])
	length := binary.BigEndian.Uint32(g.head[8:])
	switch {
	case g.head[0] != 0 || kind > muxGoAway:
		return fmt.Errorf("%w: an unknown frame below the operations", errProtocol)
	case kind == muxData && length > maxWrite:
		return fmt.Errorf("%w: a frame of %d bytes below the operations", errProtocol, length)
	case kind <= muxWindow && flags&muxSYN != 0 && g.host:
		return fmt.Errorf("%w: the guest opened a stream", errProtocol)
	case kind == muxPing && flags&muxSYN != 0 && !g.ping(time.Now()):
		return fmt.Errorf("%w: a flood of pings", errProtocol)
	}
	if kind == muxData {
		g.body = length
		if length > smallBody && g.bulk != nil {
			g.bulk()
		}
	}
	if flags&muxRights == 0 {
		return nil
	}
	if kind != muxData || g.host || g.pass == nil {
		return fmt.Errorf("%w: descriptors are out of place", errProtocol)
	}
	return g.claim(binary.BigEndian.Uint32(g.head[4:]), g.pass.take())
}

// ping counts a ping and reports whether it is within the limit.
func (g *guard) ping(now time.Time) bool {
	if passed := int(now.Sub(g.since) / pingInterval); passed > 0 {
		g.pings = max(0, g.pings-passed)
		g.since = now
	}
	g.pings++
	return g.pings <= pingBurst
}

// smallBody is the largest frame that does not count as bulk data. guard keeps the memory of
// its buffer only for such frames.
const smallBody = 16 << 10

// joined pools buffers for a long frame and all bytes before it. Copying costs less than a
// second write, which would wake every process between the two ends.
var joined = sync.Pool{New: func() any { return new([maxWrite + smallBody]byte) }}

// Write holds back bytes that yamux follows up at once: the header of a frame with a body, and
// the opening of a stream by the host, which always sends a request next.
func (g *guard) Write(p []byte) (int, error) {
	if !g.heldBody && len(p) == muxHeader {
		flags := binary.BigEndian.Uint16(p[2:])
		g.heldBody = p[1] == muxData && !bytes.Equal(p[8:], []byte{0, 0, 0, 0})
		if g.heldBody || (g.host && p[1] == muxWindow && flags == muxSYN) {
			g.held = append(g.held, p...)
			if g.heldBody && g.host && g.pass != nil {
				g.attach(g.held[len(g.held)-muxHeader:])
			}
			return len(p), nil
		}
	}
	if !g.heldBody && len(g.held) == 0 && (isEnd(p) || !g.host && isStreamAccept(p)) {
		n, err := g.lazy.WriteLater(p)
		return n, g.lost(err)
	}
	g.heldBody = false
	if len(g.held)+len(p) > smallBody {
		small, room := g.held, joined.Get().(*[maxWrite + smallBody]byte)
		g.held = append(room[:0], small...)
		defer func() {
			g.held = small[:0]
			joined.Put(room)
		}()
	}
	g.held = append(g.held, p...)
	return len(p), g.flush()
}

// deferringWriter is a byte stream on which every write is expensive, such as a call of a service.
// WriteLater is Write for bytes that the other end does not wait for: they may be sent a moment
// later, together with the next write.
type deferringWriter interface {
	WriteLater(p []byte) (int, error)
}

// isEnd reports whether a frame only says that no more comes on its stream.
func isEnd(p []byte) bool {
	return len(p) == muxHeader && p[1] == muxWindow && binary.BigEndian.Uint16(p[2:]) == muxFIN && binary.BigEndian.Uint32(p[8:]) == 0
}

// isStreamAccept reports whether a frame only says that a stream has been accepted, and how much may
// be sent on it at once, which matters only for much data.
func isStreamAccept(p []byte) bool {
	return len(p) == muxHeader && p[1] == muxWindow && binary.BigEndian.Uint16(p[2:]) == muxACK
}

// attach marks the header of a frame that carries descriptors.
func (g *guard) attach(header []byte) {
	files := g.release(binary.BigEndian.Uint32(header[4:]))
	if len(files) > 0 {
		g.heldPass = files
		header[2] |= muxRights >> 8
	}
}

// flush writes the held bytes.
func (g *guard) flush() error {
	var err error
	if g.heldPass != nil {
		var deferred []byte
		if p, ok := g.rw.(*deferredWriter); ok {
			deferred, err = p.takeDeferred()
		}
		if err == nil {
			_, err = g.pass.writeWith(append(deferred, g.held...), g.heldPass)
		}
		closeAll(g.heldPass)
		g.heldPass = nil
	} else {
		_, err = g.rw.Write(g.held)
	}
	g.held = g.held[:0]
	return g.lost(err)
}

// drop closes the descriptors that are still in transit.
func (g *guard) drop() {
	closeAll(g.heldPass)
	if g.pass != nil {
		closeAll(g.pass.take())
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nothing is written to them here
	}
}

// Close ends the session. yamux calls it for reasons of its own.
func (g *guard) Close() error {
	g.onEnd()
	return g.rw.Close()
}

const (
	// deferTime is how long a write may wait if the other end does not wait for it. Most
	// commands are answered within it, so that all frames about one go in a single write.
	deferTime = 5 * time.Millisecond
	// maxDeferred bounds the deferred writes, in bytes.
	maxDeferred = 16 * muxHeader
)

// deferredWriter is a byte stream. It keeps the bytes of WriteLater for a moment, so that the
// next write includes them: every write wakes all processes between the two ends, on a machine
// where the command that was just started needs the processor.
type deferredWriter struct {
	io.ReadWriteCloser
	pipes             *stdio // the stream itself, or nil if it is no stdio
	readLot, wroteLot sync.Once
	busy              func() // called while much data is read

	mu       sync.Mutex
	deferred []byte // to write first
	timer    *time.Timer
	closed   bool
	err      error // of a deferred write
}

func newDeferredWriter(rw io.ReadWriteCloser) *deferredWriter {
	p := &deferredWriter{ReadWriteCloser: rw, busy: func() {}}
	p.pipes, _ = rw.(*stdio)
	p.timer = time.AfterFunc(time.Hour, p.flush)
	p.timer.Stop()
	return p
}

// Write writes the deferred bytes, and then b.
func (p *deferredWriter) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	if len(b) > smallBody && p.pipes != nil {
		p.wroteLot.Do(p.pipes.growOut)
	}
	if len(p.deferred) == 0 {
		return p.ReadWriteCloser.Write(b)
	}
	p.timer.Stop()
	if len(b) > smallBody {
		p.write()
		if p.err != nil {
			return 0, p.err
		}
		return p.ReadWriteCloser.Write(b)
	}
	p.deferred = append(p.deferred, b...)
	p.write()
	if p.err != nil {
		return 0, p.err
	}
	return len(b), nil
}

// WriteLater keeps b for the next Write, at most for deferTime and up to maxDeferred bytes.
func (p *deferredWriter) WriteLater(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	if len(p.deferred) == 0 && !p.closed {
		p.timer.Reset(deferTime)
	}
	if p.deferred = append(p.deferred, b...); len(p.deferred) >= maxDeferred {
		p.timer.Stop()
		p.write()
	}
	return len(b), p.err
}

// bulk handles the arrival of much data.
func (p *deferredWriter) bulk() {
	p.busy()
	if p.pipes != nil {
		p.readLot.Do(p.pipes.growIn)
	}
	p.hurry()
}

// hurry triggers the deferred writes without waiting: the reader of the stream must not wait
// for its writer.
func (p *deferredWriter) hurry() {
	if !p.mu.TryLock() {
		return // a write is in progress
	}
	defer p.mu.Unlock()
	if len(p.deferred) > 0 && !p.closed {
		p.timer.Reset(0)
	}
}

// takeDeferred returns the deferred bytes. The caller writes them.
func (p *deferredWriter) takeDeferred() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Stop()
	deferred := p.deferred
	p.deferred = nil
	return deferred, p.err
}

// flush writes the deferred bytes when deferTime has passed.
func (p *deferredWriter) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.deferred) > 0 && !p.closed && p.err == nil {
		p.write()
	}
}

// write writes the deferred bytes. The caller holds p.mu.
func (p *deferredWriter) write() {
	_, p.err = p.ReadWriteCloser.Write(p.deferred)
	p.deferred = p.deferred[:0]
}

// Close closes the stream. The deferred bytes mean nothing to a peer that sees the end.
func (p *deferredWriter) Close() error {
	err := p.ReadWriteCloser.Close() // unblocks a write
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.timer.Stop()
	return err
}
