package workspace

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/restic/chunker"
)

// Files of at most wholeFile bytes are one blob. Larger ones are stored in pieces, whose borders follow from the
// content, so that two versions of a file share what is equal in both.
const (
	wholeFile = 256 << 10
	minPiece  = 16 << 10
	maxPiece  = 512 << 10
	pieceBits = 16 // a piece has 64 KiB on average
)

// polynomial is of degree 53 and irreducible. Another one would give all large files other pieces.
const polynomial = chunker.Pol(0x3DA3358B4DC173)

// piece is a part of a large file.
type piece struct {
	digest Digest // empty for a hole, whose bytes are zero
	size   int64
}

func digestOf(data []byte) Digest {
	sum := sha256.Sum256(data)
	return Digest(hex.EncodeToString(sum[:]))
}

// cutter reads the content of one file at a time. Its buffers are used again.
type cutter struct {
	first  []byte
	block  [holeBlock]byte
	buf    []byte
	pieces *chunker.Chunker
}

// cut reads a content to its end and calls emit with each of its blobs, whose data is valid until emit returns. It
// returns the entry's digest and size. The list of pieces is emitted last.
func (c *cutter) cut(r io.Reader, emit func(Digest, []byte) error) (digest Digest, pieces []piece, size int64, err error) {
	if c.first == nil {
		c.first = make([]byte, wholeFile+1)
	}
	n, err := fill(r, c.first)
	switch {
	case errors.Is(err, io.EOF) && n < len(c.first):
		digest = digestOf(c.first[:n])
		return digest, nil, int64(n), emit(digest, c.first[:n])
	case err != nil && !errors.Is(err, io.EOF):
		return "", nil, 0, err
	}
	data := &segments{r: io.MultiReader(bytes.NewReader(c.first), r), buf: c.block[:]}
	for {
		hole, err := data.skipHole()
		if hole > 0 {
			pieces = append(pieces, piece{size: hole})
			size += hole
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", nil, 0, err
		}
		if pieces, err = c.cutSegment(data, pieces, emit); err != nil {
			return "", nil, 0, err
		}
	}
	for _, p := range pieces {
		if p.digest != "" {
			size += p.size
		}
	}
	list := encodePieces(pieces)
	digest = digestOf(list)
	return digest, pieces, size, emit(digest, list)
}

// cutSegment cuts data up to the next hole and adds its pieces.
func (c *cutter) cutSegment(data io.Reader, pieces []piece, emit func(Digest, []byte) error) ([]piece, error) {
	if c.pieces == nil {
		c.buf = make([]byte, maxPiece)
		c.pieces = chunker.NewWithBoundaries(data, polynomial, minPiece, maxPiece)
	} else {
		c.pieces.ResetWithBoundaries(data, polynomial, minPiece, maxPiece)
	}
	c.pieces.SetAverageBits(pieceBits)
	for {
		next, err := c.pieces.Next(c.buf)
		if errors.Is(err, io.EOF) {
			return pieces, nil
		}
		if err != nil {
			return nil, err
		}
		p := piece{digest: digestOf(next.Data), size: int64(len(next.Data))}
		if err := emit(p.digest, next.Data); err != nil {
			return nil, err
		}
		pieces = append(pieces, p)
	}
}

// holeBlock is the unit of holes.
const holeBlock = 64 << 10

// segments reads a content in blocks and separates data from holes, which are blocks of zeros. Read ends at a hole.
type segments struct {
	r    io.Reader
	buf  []byte
	left []byte // of a block of data, or all of it
	hole int64  // zeros that follow left
	err  error
}

func (s *segments) Read(p []byte) (int, error) {
	if len(s.left) == 0 && s.hole == 0 && s.err == nil {
		s.next()
	}
	if len(s.left) == 0 {
		if s.err != nil && !errors.Is(s.err, io.EOF) {
			return 0, s.err
		}
		return 0, io.EOF
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

// skipHole returns how many zeros come before the next data, or before the end, which is io.EOF.
func (s *segments) skipHole() (int64, error) {
	n := s.hole
	s.hole = 0
	for len(s.left) == 0 && s.err == nil {
		s.next()
		n += s.hole
		s.hole = 0
	}
	if len(s.left) > 0 {
		return n, nil
	}
	return n, s.err
}

// fill is io.ReadFull with io.EOF for an end within buf, which it so tells from the io.ErrUnexpectedEOF of an archive.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// next reads a block.
func (s *segments) next() {
	n, err := fill(s.r, s.buf)
	if s.err = err; isZero(s.buf[:n]) {
		s.hole = int64(n)
		return
	}
	s.left = s.buf[:n]
}

var zeros [4096]byte

func isZero(data []byte) bool {
	for len(data) > 0 {
		n := min(len(data), len(zeros))
		if !bytes.Equal(data[:n], zeros[:n]) {
			return false
		}
		data = data[n:]
	}
	return true
}

// encodePieces returns the list of the pieces of a file: a line for each, with its size and its digest, which is - for a
// hole.
func encodePieces(pieces []piece) []byte {
	var b []byte
	for _, p := range pieces {
		b = strconv.AppendInt(b, p.size, 10)
		b = append(b, ' ')
		if p.digest == "" {
			b = append(b, '-')
		}
		b = append(b, p.digest...)
		b = append(b, '\n')
	}
	return b
}

var errBadPieces = errors.New("the stored list of the pieces of a file is malformed")

// decodePieces parses the output of encodePieces for a file of this size.
func decodePieces(r io.Reader, size int64) ([]piece, error) {
	var pieces []piece
	in := bufio.NewScanner(r)
	for in.Scan() {
		digits, digest, _ := strings.Cut(in.Text(), " ")
		n, err := strconv.ParseInt(digits, 10, 64)
		p := piece{size: n, digest: Digest(digest)}
		if p.digest == "-" {
			p.digest = ""
		} else if !validDigest(p.digest) || n > maxPiece {
			err = errBadPieces
		}
		if size -= n; err != nil || n <= 0 || size < 0 {
			return nil, fmt.Errorf("%w: line %d", errBadPieces, len(pieces)+1)
		}
		pieces = append(pieces, p)
	}
	if in.Err() == nil && size != 0 {
		return nil, errBadPieces
	}
	return pieces, in.Err()
}

func validDigest(d Digest) bool {
	raw, err := hex.DecodeString(string(d))
	return err == nil && len(raw) == sha256.Size
}

// content reads a file of a state. It opens one blob after the other.
type content struct {
	ctx    context.Context //nolint:containedctx // of the call that reads the content, as an io.Reader has none
	blobs  Blobs
	pieces []piece // that follow
	open   io.ReadCloser
	hole   int64 // zero bytes that follow
	err    error
}

// openContent returns the content of a file. Only a content that was read to io.EOF is verified. The caller closes it.
func openContent(ctx context.Context, blobs Blobs, e Entry) (io.ReadCloser, error) {
	if e.isLink() {
		return io.NopCloser(strings.NewReader(e.Target)), nil
	}
	if !e.pieces {
		return blobs.Blob(ctx, e.digest)
	}
	pieces, err := piecesOf(ctx, blobs, e)
	if err != nil {
		return nil, err
	}
	return &content{ctx: ctx, blobs: blobs, pieces: pieces}, nil
}

// piecesOf reads the list of the pieces of a large file.
func piecesOf(ctx context.Context, blobs Blobs, e Entry) (_ []piece, err error) {
	r, err := blobs.Blob(ctx, e.digest)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return decodePieces(r, e.Size)
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	for c.err == nil && len(p) > 0 {
		switch {
		case c.ctx.Err() != nil:
			c.err = context.Cause(c.ctx)
		case c.hole > 0:
			n := int(min(c.hole, int64(len(p))))
			clear(p[:n])
			c.hole -= int64(n)
			return n, nil
		case c.open != nil:
			n, err := c.open.Read(p)
			if errors.Is(err, io.EOF) {
				err = c.open.Close()
				c.open = nil
			}
			if c.err = err; n > 0 {
				return n, nil
			}
		default:
			c.err = c.next()
		}
	}
	return 0, c.err
}

// next opens the next piece.
func (c *content) next() (err error) {
	if len(c.pieces) == 0 {
		return io.EOF
	}
	p := c.pieces[0]
	c.pieces = c.pieces[1:]
	if p.digest == "" {
		c.hole = p.size
		return nil
	}
	c.open, err = c.blobs.Blob(c.ctx, p.digest)
	return err
}

// Close implements io.Closer.
func (c *content) Close() error {
	if c.open == nil {
		return nil
	}
	err := c.open.Close()
	c.open, c.err = nil, io.ErrClosedPipe
	return err
}
