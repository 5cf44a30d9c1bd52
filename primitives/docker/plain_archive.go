package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Pack implements primitives.Packer. The archive is made here, of what List and
// Open say, so that it holds what the sandbox's user may read, and is sorted.
func (p *plain) Pack(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
	for _, pattern := range opts.Ignore {
		if !doublestar.ValidatePattern(pattern) {
			return nil, p.fail("pack", dir, fmt.Errorf("%w: the pattern %q is malformed", fs.ErrInvalid, pattern))
		}
	}
	infos, err := p.walk(ctx, dir, -1)
	if err != nil {
		return nil, p.fail("pack", dir, err)
	}
	r, w := io.Pipe()
	a := &plainPack{PipeReader: r}
	a.writing.Go(func() {
		err := p.pack(ctx, w, dir, infos, opts.Ignore)
		if err != nil && !errors.Is(err, io.ErrClosedPipe) {
			err = p.fail("pack", dir, err)
		}
		_ = w.CloseWithError(err) // nil is io.EOF for the reader
	})
	return a, nil
}

// plainPack is an archive that is being made.
type plainPack struct {
	*io.PipeReader
	writing sync.WaitGroup
}

func (a *plainPack) Close() error {
	err := a.PipeReader.Close()
	a.writing.Wait()
	return err
}

func (p *plain) pack(ctx context.Context, w io.Writer, dir string, infos []primitives.FileInfo, ignore []string) error {
	out := tar.NewWriter(w)
	for _, info := range infos {
		if ignored(info.Path, ignore) {
			continue
		}
		h := &tar.Header{Name: info.Path, Mode: int64(info.Mode.Perm()), ModTime: info.ModTime, Format: tar.FormatPAX}
		switch info.Mode.Type() {
		case 0:
			h.Typeflag, h.Size = tar.TypeReg, info.Size
		case fs.ModeDir:
			h.Typeflag, h.Name = tar.TypeDir, info.Path+"/"
		case fs.ModeSymlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, info.Target
		default:
			continue
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			if err := p.packFile(ctx, out, path.Join(dir, info.Path), info.Size); err != nil {
				return fmt.Errorf("%s: %w", info.Path, err)
			}
		}
	}
	return out.Close()
}

// packFile packs as much as the header says; a file that became shorter is an
// error.
func (p *plain) packFile(ctx context.Context, out io.Writer, name string, size int64) error {
	f, err := p.open(ctx, p.paths.Workspace, name)
	if err != nil {
		return err
	}
	_, err = io.CopyN(out, f, size)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		_, _ = f.Read(make([]byte, 1)) // the end, so that the shell can be used again
	}
	return errors.Join(err, f.Close())
}

// ignored reports whether a path or a directory above it matches. A pattern
// without a slash matches names at any depth.
func ignored(name string, patterns []string) bool {
	for ; name != "."; name = path.Dir(name) {
		for _, pattern := range patterns {
			subject := name
			if !strings.Contains(pattern, "/") {
				subject = path.Base(name)
			}
			if doublestar.MatchUnvalidated(pattern, subject) {
				return true
			}
		}
	}
	return false
}

// Unpack implements primitives.Unpacker.
func (p *plain) Unpack(ctx context.Context, dir string, r io.Reader) error {
	return p.fail("unpack", dir, p.unpack(ctx, dir, r))
}

func (p *plain) unpack(ctx context.Context, dir string, r io.Reader) error {
	if _, err := p.onPath(ctx, "make", dir, "755"); err != nil {
		return err
	}
	root, err := p.onPath(ctx, "where", dir)
	if err != nil {
		return err
	}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if err := p.unpackEntry(ctx, root, h, in); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

// unpackEntry makes one entry below root, to which the control shell confines it,
// too.
func (p *plain) unpackEntry(ctx context.Context, root string, h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	if !fs.ValidPath(name) {
		return primitives.ErrPathEscape
	}
	if name == "." {
		return nil
	}
	mode := fs.FileMode(h.Mode).Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		_, err := p.ask(ctx, "", "make", root, name, strconv.FormatUint(uint64(mode), 8))
		return err
	case tar.TypeReg:
		return p.write(ctx, root, name, content, primitives.WriteOptions{Mode: mode})
	case tar.TypeSymlink:
		target := path.Join(path.Dir(name), h.Linkname)
		if path.IsAbs(h.Linkname) {
			target = strings.TrimPrefix(path.Clean(h.Linkname), root+"/")
		}
		if !fs.ValidPath(target) {
			return primitives.ErrPathEscape
		}
		_, err := p.ask(ctx, "", "connect", root, name, h.Linkname)
		return err
	case tar.TypeLink:
		return p.unpackCopy(ctx, root, name, path.Clean(h.Linkname), mode)
	case tar.TypeFifo, tar.TypeChar, tar.TypeBlock:
		return primitives.ErrNotRegular
	}
	return nil // a header without a file
}

// unpackCopy makes the copy that a hard link becomes.
func (p *plain) unpackCopy(ctx context.Context, root, name, from string, mode fs.FileMode) error {
	if !fs.ValidPath(from) {
		return primitives.ErrPathEscape
	}
	f, err := p.open(ctx, root, from)
	if err != nil {
		return err
	}
	err = p.write(ctx, root, name, f, primitives.WriteOptions{Mode: mode})
	return errors.Join(err, f.Close())
}
