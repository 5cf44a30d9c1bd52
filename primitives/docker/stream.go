package docker

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/agentenv-dev/agentenv/internal/tail"
)

// stream is the guest's end of an attached connection: it reads what the
// container's process writes to standard output and writes to its standard input.
// What comes on standard error is kept, the end of it.
type stream struct {
	conn   net.Conn
	r      *bufio.Reader
	left   uint32 // bytes of the frame that is being read
	stderr tail.Buffer
}

// aheadOfFrame is how much is read together with the head of a frame: a short frame
// as a whole. More would be memory that every idle stream has.
const aheadOfFrame = 512

func newStream(h types.HijackedResponse) *stream {
	r := h.Reader
	if r.Buffered() == 0 {
		r = bufio.NewReaderSize(h.Conn, aheadOfFrame)
	}
	return &stream{conn: h.Conn, r: r}
}

// Read reads standard output. The engine sends both outputs in frames: a byte for
// the output, three zeros, the length, and the data.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for s.left == 0 {
		var head [8]byte
		if _, err := io.ReadFull(s.r, head[:]); err != nil {
			return 0, err
		}
		n := binary.BigEndian.Uint32(head[4:])
		switch stdcopy.StdType(head[0]) {
		case stdcopy.Stdout:
			s.left = n
		case stdcopy.Stderr, stdcopy.Systemerr:
			if _, err := io.CopyN(&s.stderr, s.r, int64(n)); err != nil {
				return 0, err
			}
		default:
			return 0, errFrame
		}
	}
	n, err := s.r.Read(p[:min(int64(len(p)), int64(s.left))])
	s.left -= uint32(n)
	if errors.Is(err, io.EOF) && s.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

var errFrame = errors.New("the engine sent no frames; does the container have a terminal?")

func (s *stream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// Close ends the connection, which the engine passes on as the end of standard
// input.
func (s *stream) Close() error { return s.conn.Close() }

// Stderr returns the end of what came on standard error.
func (s *stream) Stderr() string { return s.stderr.String() }
