package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// Open returns the tar stream that r has, plain or compressed with gzip. The error is tar.ErrHeader if it is neither; what
// comes after the first header is not looked at.
func Open(r io.Reader) (io.Reader, error) {
	const block = 512
	buffered := bufio.NewReaderSize(r, 64<<10)
	if magic, err := buffered.Peek(2); err == nil && bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		zip, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("the archive looks like gzip and is not: %w", err)
		}
		buffered = bufio.NewReader(zip)
	}
	head, err := buffered.Peek(block)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	_, err = tar.NewReader(bytes.NewReader(head)).Next()
	if errors.Is(err, tar.ErrHeader) || 0 < len(head) && len(head) < block {
		return nil, fmt.Errorf("%w; give a tar archive, plain or compressed with gzip", tar.ErrHeader)
	}
	return buffered, nil
}
