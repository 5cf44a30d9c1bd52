package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/input"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Folder selects the files of a folder of this machine to pack.
type Folder struct {
	Path string
	// Names are the files to pack. Pack skips missing files. Nil means all files.
	Names []string
	// Skip reports whether to leave out a file or folder. Nil leaves out nothing.
	Skip func(name string) bool
	// Limit bounds the archive.
	Limit Limit
}

// Pack writes the folder as a tar stream: regular files, without their holes, folders and links. It never follows a
// link out of the folder, and never blocks on a pipe. FIFOs, sockets and devices are
// [primitives.ErrNotRegular].
func (f Folder) Pack(ctx context.Context, w io.Writer) error {
	root, err := os.OpenRoot(f.Path)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // it was only read
	p := newPacker(w, f)
	p.root = root
	if f.Names != nil {
		err = p.listed(ctx)
	} else {
		err = p.everything(ctx, ".")
	}
	if err != nil {
		return err
	}
	return p.tw.Close()
}

type packer struct {
	Folder
	root  *os.Root
	tw    *tar.Writer
	out   *struct{ io.Writer } // to which tw writes
	meter meter
}

func newPacker(w io.Writer, f Folder) *packer {
	out := &struct{ io.Writer }{w}
	return &packer{Folder: f, tw: tar.NewWriter(out), out: out, meter: meter{limit: f.Limit}}
}

// everything packs the contents of a folder of the root, recursively. It does not use
// fs.WalkDir, which refuses names that are not UTF-8.
func (p *packer) everything(ctx context.Context, dir string) error {
	d, err := p.root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, entry := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		name := path.Join(dir, entry.Name())
		if p.Skip != nil && p.Skip(name) {
			continue
		}
		if err := p.add(ctx, name); err != nil {
			return err
		}
		if entry.IsDir() {
			if err := p.everything(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// listed packs the names.
func (p *packer) listed(ctx context.Context) error {
	slices.Sort(p.Names)
	for _, name := range slices.Compact(p.Names) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if p.Skip != nil && p.Skip(name) {
			continue
		}
		if err := p.add(ctx, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (p *packer) add(ctx context.Context, name string) error {
	info, err := p.root.Lstat(name)
	if err != nil {
		return err
	}
	h := header(name, info)
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		return p.header(h)
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = p.root.Readlink(name); err != nil {
			return err
		}
		return p.header(h)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: %w", name, primitives.ErrNotRegular)
	}
	return p.addFile(ctx, name, h)
}

func header(name string, info fs.FileInfo) *tar.Header {
	return &tar.Header{Name: filepath.ToSlash(name), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
}

func (p *packer) header(h *tar.Header) error {
	if err := p.meter.add(h); err != nil {
		return err
	}
	return p.tw.WriteHeader(h)
}

func (p *packer) addFile(ctx context.Context, name string, h *tar.Header) error {
	f, err := input.OpenIn(p.root, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	return p.content(ctx, f, h)
}

// content packs an open file.
func (p *packer) content(ctx context.Context, f *os.File, h *tar.Header) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := p.meter.add(h); err != nil {
		return err
	}
	parts := extents(f, h.Size)
	if err := p.writeHeader(h, parts); err != nil {
		return err
	}
	for _, part := range parts {
		if _, err := io.CopyN(p.tw, until{ctx, io.NewSectionReader(f, part.at, part.size)}, part.size); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%s: changed while it was copied: %w", f.Name(), err)
		}
	}
	return nil
}

// PackFile writes an open regular file as a tar stream with one entry of the given name.
func PackFile(ctx context.Context, w io.Writer, f *os.File, name string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	p := newPacker(w, Folder{Limit: Limit{Bytes: -1}})
	if err := p.content(ctx, f, header(name, info)); err != nil {
		return err
	}
	return p.tw.Close()
}

// until is a reader that fails once its context is done.
type until struct {
	ctx context.Context //nolint:containedctx // it lives as long as one call
	io.Reader
}

// Read implements io.Reader.
func (u until) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.Reader.Read(p)
}
