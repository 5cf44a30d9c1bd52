// Package archive packs and unpacks trees of files as tar streams, within limits. It does not
// trust archives that come from a sandbox.
package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"

	"github.com/agentenv-dev/agentenv/primitives"
)

// The limits of a zero [Limit].
const (
	maxBytes   = 16 << 30 // 16 GiB of content
	maxEntries = 1 << 20  // files, folders and links
	nameBytes  = 256      // of names and link targets, for each entry
)

// Limit bounds the unpacked size of one archive. Holes count: a sparse file counts with its
// apparent size.
type Limit struct {
	// Bytes is the maximum content in bytes. Zero means 16 GiB. A negative number means no
	// limit.
	Bytes int64
	// Entries is the maximum number of files, folders and links. Zero means 1,048,576.
	Entries int64
	// Advice is appended to the error's message.
	Advice string
}

func (l Limit) bytes() int64 {
	if l.Bytes == 0 {
		return maxBytes
	}
	return l.Bytes
}

// MaxEntries returns the maximum number of files, folders and links.
func (l Limit) MaxEntries() int64 {
	if l.Entries == 0 {
		return maxEntries
	}
	return l.Entries
}

// Meter returns a function that counts entries before they are packed. It fails with
// [primitives.ErrLimit] at the first entry beyond the limit.
func (l Limit) Meter() func(*tar.Header) error { return (&meter{limit: l}).add }

// meter counts the entries of one archive.
type meter struct {
	limit                 Limit
	bytes, entries, names int64
}

// add counts an entry before its content is read or written. An entry beyond the
// limit is [primitives.ErrLimit].
func (m *meter) add(h *tar.Header) error {
	m.entries++
	m.names += int64(len(h.Name) + len(h.Linkname))
	most, entries := m.limit.bytes(), m.limit.MaxEntries()
	var what string
	switch {
	case most >= 0 && h.Size > most-m.bytes:
		what = "more than " + size(most) + " of content"
	case m.entries > entries:
		what = fmt.Sprintf("more than %d files", entries)
	case m.names > nameBytes*entries:
		what = "more than " + size(nameBytes*entries) + " of names"
	default:
		m.bytes += h.Size
		return nil
	}
	err := fmt.Errorf("%w: with %.200q there is %s", primitives.ErrLimit, h.Name, what)
	if m.limit.Advice != "" {
		err = fmt.Errorf("%w; %s", err, m.limit.Advice)
	}
	return err
}

// size formats a number of bytes.
func size(n int64) string {
	for _, u := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return fmt.Sprintf("%d %s", n/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// Reader reads an archive within a limit.
type Reader struct {
	*tar.Reader
	meter meter
}

// NewReader returns a reader of an archive. Its Next fails with [primitives.ErrLimit] at the
// first entry beyond the limit.
func NewReader(r io.Reader, l Limit) *Reader {
	if most := l.bytes(); most >= 0 {
		// tar.Reader does not return auxiliary headers, so limit the raw bytes, too.
		r = &rawLimit{r: r, left: most + 4096*l.MaxEntries(), limit: l}
	}
	return &Reader{Reader: tar.NewReader(r), meter: meter{limit: l}}
}

// Next advances to the next entry. It returns io.EOF at the end.
func (r *Reader) Next() (*tar.Header, error) {
	h, err := r.Reader.Next()
	if err != nil {
		return nil, err
	}
	return h, r.meter.add(h)
}

// rawLimit is a reader that bounds the bytes of the archive itself.
type rawLimit struct {
	r     io.Reader
	left  int64
	limit Limit
}

// Read implements io.Reader.
func (l *rawLimit) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, fmt.Errorf("%w: the archive is much longer than its content; %s", primitives.ErrLimit, l.limit.Advice)
	}
	return n, err
}

// Copy copies an archive byte for byte up to its end. It fails at the first entry beyond the
// limit.
func Copy(w io.Writer, r io.Reader, l Limit) error {
	in := NewReader(io.TeeReader(r, w), l)
	for {
		if _, err := in.Next(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// Pipe connects produce and consume with a pipe. It returns when both have returned, with the
// error of the function that failed first.
func Pipe(produce func(io.Writer) error, consume func(io.Reader) error) error {
	r, w := io.Pipe()
	produced := make(chan error, 1)
	go func() {
		err := produce(w)
		_ = w.CloseWithError(err) // nil becomes io.EOF for the reader
		produced <- err
	}()
	err := consume(r)
	_ = r.CloseWithError(errEnded)
	if perr := <-produced; perr != nil && !errors.Is(perr, errEnded) {
		return perr // the cause of consume's error
	}
	return err
}

var errEnded = errors.New("what is written is no longer read")
