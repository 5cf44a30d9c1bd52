package environment

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

	"github.com/agentenv-dev/agentenv/primitives"
)

// packFolder writes a folder of this machine as a tar stream.
func packFolder(ctx context.Context, f Folder, w io.Writer) error {
	root, err := os.OpenRoot(f.Path)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // it was only read
	p := &folderPacker{root: root, tw: tar.NewWriter(w), ignore: f.Ignore}
	if f.Gitignore {
		err = p.listed(ctx, f.Path)
	} else {
		err = p.everything(ctx, ".")
	}
	if err != nil {
		return err
	}
	return p.tw.Close()
}

// folderPacker never leaves its root, whatever links the folder holds.
type folderPacker struct {
	root   *os.Root
	tw     *tar.Writer
	ignore []string
}

// everything packs a folder of the root and what is below it. It does not use
// fs.WalkDir, which refuses names that are not UTF-8.
func (p *folderPacker) everything(ctx context.Context, dir string) error {
	d, err := p.root.Open(dir)
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
		if ignoredItself(p.ignore, name) {
			continue
		}
		if err := p.add(name); err != nil {
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

// listed packs what git lists.
func (p *folderPacker) listed(ctx context.Context, dir string) error {
	names, err := gitFiles(ctx, dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if ignored(p.ignore, name) {
			continue
		}
		// git also lists what is tracked and was deleted.
		if err := p.add(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (p *folderPacker) add(name string) error {
	info, err := p.root.Lstat(name)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: filepath.ToSlash(name), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		return p.tw.WriteHeader(h)
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = p.root.Readlink(name); err != nil {
			return err
		}
		return p.tw.WriteHeader(h)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: %w: remove it or add it to ignore", name, primitives.ErrNotRegular)
	}
	return p.addFile(name, h)
}

func (p *folderPacker) addFile(name string, h *tar.Header) error {
	f, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.CopyN(p.tw, f, h.Size); err != nil {
		return fmt.Errorf("%s: changed while it was copied: %w", name, err)
	}
	return nil
}
