package workspace

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

// manyNames is how many bytes of paths are asked for at once.
const manyNames = 1 << 20

// contents reads the changed files. A file that is gone meanwhile is forgotten, and one that cannot be read is lost.
func (t *taking) contents(ctx context.Context, failed *error) iter.Seq2[int, io.Reader] {
	return func(yield func(int, io.Reader) bool) {
		for at := 0; at < len(t.changed); {
			var names []string
			size, end := 0, at
			for ; end < len(t.changed) && size < manyNames; end++ {
				name := t.files[t.changed[end]].info.Path
				names, size = append(names, name), size+len(name)
			}
			read, more, err := t.packed(ctx, t.changed[at:end], names, yield)
			if !more {
				return
			}
			if err != nil {
				// A large file became shorter meanwhile: read it without saying its size first.
				if read == end-at || ctx.Err() != nil || errors.Is(err, primitives.ErrUnavailable) || errors.Is(err, primitives.ErrTerminated) ||
					errors.Is(err, errors.ErrUnsupported) {
					*failed = err
					return
				}
				more, err := t.opened(ctx, t.changed[at+read], yield)
				if err != nil {
					*failed = err
				}
				if err != nil || !more {
					return
				}
				read++
				end = at + read
			}
			at = end
		}
	}
}

// packed reads files as one archive. It returns how many of them it has dealt with, and false if the caller wants no
// more.
func (t *taking) packed(ctx context.Context, files []int, names []string, yield func(int, io.Reader) bool) (read int, more bool, err error) {
	packed, err := t.from.Pack(ctx, primitives.PackOptions{Only: names})
	if err != nil {
		return 0, true, err
	}
	defer func() { err = errors.Join(err, packed.Close()) }()
	in := archive.NewReader(packed, archive.Limit{Bytes: -1, Entries: 2 * int64(len(names))})
	for {
		h, err := in.Next()
		if err != nil && !errors.Is(err, io.EOF) {
			return read, true, err
		}
		if err == nil && h.Typeflag == tar.TypeXGlobalHeader {
			if read > 0 && h.PAXRecords[primitives.PackChanged] == names[read-1] {
				t.unsteady = append(t.unsteady, files[read-1])
			}
			continue
		}
		for ; read < len(names) && (err != nil || names[read] != h.Name); read++ {
			if err := t.missing(ctx, files[read]); err != nil {
				return read, true, err
			}
		}
		if err != nil {
			return read, true, nil
		}
		if read == len(names) {
			return read, true, fmt.Errorf("%q: the sandbox packed what was not asked for: %w", h.Name, primitives.ErrPathEscape)
		}
		f := &t.files[files[read]]
		if h.Typeflag == tar.TypeSymlink { // which has replaced the file
			f.info.Mode, f.info.Target, f.info.Revision = fs.ModeSymlink|fs.ModePerm, h.Linkname, ""
			read++
			continue
		}
		if h.Typeflag != tar.TypeReg || h.Size > f.info.Size+maxGrowth {
			return read, true, fmt.Errorf("%q: the sandbox packed a file of %d bytes that it had listed with %d: %w", h.Name, h.Size, f.info.Size, primitives.ErrLimit)
		}
		body := &checked{r: in}
		if !yield(files[read], body) {
			return read, false, nil
		}
		if body.err != nil {
			return read, true, body.err
		}
		read++
	}
}

// checked keeps the error of reading one file.
type checked struct {
	r   io.Reader
	err error
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// missing deals with a file that the sandbox has not packed: it is gone, or cannot be read.
func (t *taking) missing(ctx context.Context, i int) error {
	f := &t.files[i]
	_, err := t.from.Files().Stat(ctx, f.info.Path)
	if isGone(err) {
		f.info.Path = ""
		return nil
	}
	if errors.Is(err, fs.ErrPermission) {
		err = nil
	}
	f.lost = true
	return err
}

// isGone reports whether a file is no longer at its path.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, primitives.ErrNotDirectory) || errors.Is(err, primitives.ErrNotRegular) ||
		errors.Is(err, primitives.ErrIsDirectory)
}

// maxGrowth is how many bytes a file may have beyond its listed size.
const maxGrowth = 64 << 20

// opened reads one file whose size is not known before its end.
func (t *taking) opened(ctx context.Context, i int, yield func(int, io.Reader) bool) (more bool, err error) {
	f := &t.files[i]
	r, err := t.from.Files().Open(ctx, f.info.Path)
	switch {
	case isGone(err):
		f.info.Path = ""
		return true, nil
	case errors.Is(err, fs.ErrPermission):
		f.lost = true
		return true, nil
	case err != nil:
		return true, err
	}
	t.unsteady = append(t.unsteady, i)
	body := &checked{r: io.LimitReader(r, f.info.Size+maxGrowth)} // one that grows meanwhile might never end
	more = yield(i, body)
	if err := r.Close(); err != nil && more {
		return true, errors.Join(body.err, err)
	}
	return more, body.err
}
