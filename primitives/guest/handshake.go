package guest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Version is the version of the protocol. Both ends must have the same.
const Version = 5

const (
	// magic starts the preamble of each side. A text stream that changes line ends or drops the
	// eighth bit damages it, as in PNG.
	magic = "\x89AGENTENV\r\n\x1a\n"
	// maxHello is the longest hello.
	maxHello = 64 << 10
	// maxBanner is how many bytes may precede the magic. maxOutput is how many of them are kept
	// for the error.
	maxBanner = 64 << 10
	maxOutput = 4 << 10
	// handshakeBuffer is enough for most hellos. It is small because a guest that rarely
	// collects garbage keeps it for long.
	handshakeBuffer = 512
	// DefaultHandshakeTimeout is how long a handshake may take.
	DefaultHandshakeTimeout = 10 * time.Second
)

// ExitUnmet is the exit status of a guest program to which no host came: nobody knows its sandbox.
const ExitUnmet = 3

// hello describes one side to the other: the guest describes its sandbox, the host offers a
// socket.
type hello struct {
	ID           string
	Paths        primitives.Paths
	Capabilities primitives.Capabilities
	Offer        *offer
}

func (h *hello) code(c *codec) {
	codeString(c, &h.ID)
	codePaths(c, &h.Paths)
	codeCapabilities(c, &h.Capabilities)
	codeOptional(c, &h.Offer, codeOffer)
}

// preamble returns the first bytes that a side sends.
func preamble(h *hello) []byte {
	body := encode(h)
	b := append(make([]byte, 0, len(magic)+6+len(body)), magic...)
	b = binary.BigEndian.AppendUint16(b, Version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

// readPreamble reads the preamble of the other side. Up to banner bytes may precede it; output
// is the first part of those.
func readPreamble(r *bufio.Reader, banner int) (h hello, output []byte, err error) {
	for matched, skipped := 0, 0; matched < len(magic); {
		b, err := r.ReadByte()
		if err != nil {
			return h, output, streamError(err)
		}
		if b == magic[matched] {
			matched++
			continue
		}
		// Only the first byte of the magic can start it again: it is not
		// contained in the rest.
		wrong := append([]byte(magic[:matched]), b)
		if matched = 0; b == magic[0] {
			matched, wrong = 1, wrong[:len(wrong)-1]
		}
		if skipped += len(wrong); skipped > banner {
			output = append(output, wrong...)
			return h, output[:min(len(output), maxOutput)], fmt.Errorf("%w: no guest answered", errProtocol)
		}
		if room := maxOutput - len(output); room > 0 {
			output = append(output, wrong[:min(room, len(wrong))]...)
		}
	}
	var fixed [6]byte
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return h, output, streamError(err)
	}
	if v := binary.BigEndian.Uint16(fixed[:]); v != Version {
		return h, output, &VersionError{Ours: Version, Theirs: int(v)}
	}
	n := binary.BigEndian.Uint32(fixed[2:])
	if n > maxHello {
		return h, output, fmt.Errorf("%w: a hello of %d bytes", errProtocol, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return h, output, streamError(err)
	}
	if err := decode(body, &h); err != nil {
		return h, output, fmt.Errorf("%w: %w", errProtocol, err)
	}
	return h, output, nil
}

// handshakeResult is the result of a handshake.
type handshakeResult struct {
	rw     io.ReadWriteCloser // the stream to use
	in     io.Reader          // read from this instead of rw
	theirs hello
	pipes  *net.UnixConn // rw, if descriptors may be passed over it
	why    string        // why the guest did not move to the socket
	work   func(bool)    // ServeConfig.Work; nil at the host
}

// handshake exchanges hellos; the guest speaks first. Then it calls settle, in which the guest
// may move to a socket. If handshake fails, it has closed rw.
func handshake(ctx context.Context, rw io.ReadWriteCloser, ours *hello, host bool, timeout time.Duration,
	settle func(ctx context.Context, r *bufio.Reader, a *handshakeResult) error,
) (*handshakeResult, error) {
	if timeout <= 0 {
		timeout = DefaultHandshakeTimeout
	}
	// Only closing the stream unblocks its readers and writers.
	timer := time.AfterFunc(timeout, func() { _ = rw.Close() })
	stop := context.AfterFunc(ctx, func() { _ = rw.Close() })

	r := bufio.NewReaderSize(rw, handshakeBuffer)
	theirs, output, err := exchange(r, rw, ours, host)
	a := &handshakeResult{rw: rw, in: &rest{buffered: r, rw: rw}, theirs: theirs}
	if err == nil {
		err = settle(ctx, r, a)
	}
	inTime, wanted := timer.Stop(), stop()
	switch {
	case !wanted:
		err = ctx.Err()
	case !inTime:
		err = fmt.Errorf("%w: no handshake within %v", os.ErrDeadlineExceeded, timeout)
	}
	if err != nil {
		_ = rw.Close()
		if a.rw != rw {
			_ = a.rw.Close()
		}
		return nil, &HandshakeError{Output: string(output), Err: err}
	}
	if a.rw != rw {
		_ = rw.Close() // neither side uses it any more
	}
	return a, nil
}

// rest reads the stream after a handshake: first the bytes that were read ahead, whose buffer
// it then releases, then the stream itself.
type rest struct {
	buffered *bufio.Reader
	rw       io.Reader
}

func (r *rest) Read(p []byte) (int, error) {
	if r.buffered != nil && r.buffered.Buffered() > 0 {
		return r.buffered.Read(p)
	}
	r.buffered = nil
	return r.rw.Read(p)
}

func exchange(r *bufio.Reader, w io.Writer, ours *hello, host bool) (theirs hello, output []byte, err error) {
	if !host {
		if _, err := w.Write(preamble(ours)); err != nil {
			return hello{}, nil, err
		}
		return readPreamble(r, 0)
	}
	theirs, output, err = readPreamble(r, maxBanner)
	if later, ok := w.(deferringWriter); ok && err == nil && ours.Offer == nil {
		// The guest sends no answer to this preamble.
		_, err = later.WriteLater(preamble(ours))
		return theirs, output, err
	}
	if _, mismatch := errors.AsType[*VersionError](err); err == nil || mismatch {
		// The guest must learn our version even if this side is about to give up.
		if _, werr := w.Write(preamble(ours)); err == nil {
			err = werr
		}
	}
	return theirs, output, err
}
