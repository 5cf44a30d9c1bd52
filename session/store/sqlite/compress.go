package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/agentenv-dev/agentenv/session/store"
)

const (
	// maxWhole is the size up to which a blob is compressed and read in memory. A larger one is a
	// stream.
	maxWhole = 1 << 20
	// leastGain is the part of a content, one in so many bytes, that compression must save.
	leastGain = 16
	// window is how much of a stream the decoder holds. A record that asks for more is damaged.
	window = 1 << 20
)

// coder compresses and reads contents of up to maxWhole bytes.
type coder struct {
	*zstd.Encoder
	*zstd.Decoder
}

func newCoder() (c coder, err error) {
	if c.Encoder, err = zstd.NewWriter(nil, encoding()...); err != nil {
		return coder{}, err
	}
	c.Decoder, err = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxWhole), zstd.WithDecoderLowmem(true))
	return c, err
}

// encoding are the options of all encoders. The digest of a blob serves as its checksum.
func encoding(more ...zstd.EOption) []zstd.EOption {
	return append([]zstd.EOption{
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(window),
		zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true),
	}, more...)
}

// pack returns a content compressed, or as it is and false if that saves little.
func (c coder) pack(content []byte) ([]byte, bool) {
	packed := c.EncodeAll(content, nil)
	if len(packed) > len(content)-max(len(content)/leastGain, 1) {
		return content, false
	}
	return packed, true
}

// unpack returns a content of size bytes.
func (c coder) unpack(packed []byte, size int64) ([]byte, error) {
	if size < 0 || size > maxWhole {
		return nil, fmt.Errorf("%w: a size of %d bytes", store.ErrCorrupt, size)
	}
	content, err := c.DecodeAll(packed, make([]byte, 0, size))
	if err == nil && int64(len(content)) != size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	return content, nil
}

// packStream writes a content that begins with head to a file, compressed if that saves much of
// the head.
func (c coder) packStream(f *os.File, head []byte, rest io.Reader) (packed bool, err error) {
	all := io.MultiReader(bytes.NewReader(head), rest)
	if _, packed = c.pack(head); !packed {
		_, err = io.Copy(f, all)
		return false, err
	}
	w, err := zstd.NewWriter(f, encoding(zstd.WithEncoderConcurrency(1))...)
	if err != nil {
		return true, err
	}
	_, err = io.Copy(w, all)
	return true, errors.Join(err, w.Close())
}

// unpacked reads a compressed file.
type unpacked struct {
	io.Reader
	decoder *zstd.Decoder
	file    *os.File
}

// unpackStream reads the content of size bytes of a file, and closes the file at the end.
func unpackStream(f *os.File, size int64) (*unpacked, error) {
	d, err := zstd.NewReader(f,
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
	if err != nil {
		return nil, err
	}
	return &unpacked{io.LimitReader(d, size), d, f}, nil
}

// Read returns store.ErrCorrupt for what is no compressed content.
func (u *unpacked) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	if _, failed := errors.AsType[*fs.PathError](err); err != nil && !errors.Is(err, io.EOF) && !failed {
		err = fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	return n, err
}

// Close closes the file, too.
func (u *unpacked) Close() error {
	u.decoder.Close()
	return u.file.Close()
}
