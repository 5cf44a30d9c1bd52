package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	minHole    = 64 << 10 // bytes; a smaller hole is packed as zeros
	maxExtents = 1024     // of one file: tar.Reader reads a list of at most 1 MiB
)

// extent is a part of a file, in bytes.
type extent struct{ at, size int64 }

// extents returns the parts of a file of this size that must be read: all but its holes. The last byte is always one of
// them, because reading it fails if the file has become shorter.
func extents(f *os.File, size int64) []extent {
	var parts []extent
	end := int64(0)
	for size > minHole && end < size && len(parts) < maxExtents {
		from, err := f.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // there is no more data
			end = size - 1
			break
		}
		to, herr := f.Seek(from, unix.SEEK_HOLE)
		to = min(to, size)
		if err != nil || herr != nil || to <= from {
			break // the file system does not know its holes, or the file grows; the rest may be data
		}
		if n := len(parts); n > 0 && from-end < minHole {
			parts[n-1].size = to - parts[n-1].at
		} else {
			parts = append(parts, extent{from, to - from})
		}
		end = to
	}
	if end < size {
		parts = append(parts, extent{end, size - end})
	}
	return parts
}

// sparseKey stands for the prefix GNU.sparse. of PAX records, which tar.Writer does not write. It has the same length, and
// no clean path contains it.
const sparseKey = "//U.sparse."

// writeHeader writes the header of a file of h.Size. The caller then writes the parts. If they are not the whole file, the
// entry is sparse: its format is version 1.0 of GNU tar's, which tar.Reader reads.
func (p *packer) writeHeader(h *tar.Header, parts []extent) error {
	if h.Size == 0 || parts[0].size == h.Size {
		return p.tw.WriteHeader(h)
	}
	list, packed := fmt.Appendln(nil, len(parts)), int64(0)
	for _, part := range parts {
		list = fmt.Appendf(list, "%d\n%d\n", part.at, part.size)
		packed += part.size
	}
	const block = 512
	list = append(list, make([]byte, (block-len(list)%block)%block)...)
	sparse := *h
	sparse.PAXRecords = map[string]string{sparseKey + "major": "1", sparseKey + "minor": "0", sparseKey + "realsize": strconv.FormatInt(h.Size, 10)}
	sparse.Size = int64(len(list)) + packed

	var head bytes.Buffer
	w := p.out.Writer
	p.out.Writer = &head
	err := p.tw.WriteHeader(&sparse)
	p.out.Writer = w
	if err != nil {
		return err
	}
	if _, err := w.Write(bytes.ReplaceAll(head.Bytes(), []byte(sparseKey), []byte("GNU.sparse."))); err != nil {
		return err
	}
	_, err = p.tw.Write(list)
	return err
}
