package workspace

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
)

// Pack writes a state as an uncompressed tar archive, as primitives.Pack does. If skip is not nil, Pack leaves out the
// paths for which it returns true, and what is below them.
func Pack(ctx context.Context, blobs Blobs, root Digest, skip func(path string) bool, w io.Writer) error {
	out := tar.NewWriter(w)
	p := packing{blobs: blobs, skip: skip, out: out}
	if err := p.dir(ctx, root, "", 0); err != nil {
		return err
	}
	return out.Close()
}

type packing struct {
	blobs Blobs
	skip  func(path string) bool
	out   *tar.Writer
}

func (p *packing) dir(ctx context.Context, d Digest, dir string, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	entries, err := list(ctx, p.blobs, d)
	if err != nil {
		return fmt.Errorf("%s: %w", path.Join(".", dir), err)
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		if p.skip != nil && p.skip(name) {
			continue
		}
		if err := p.entry(ctx, e, name, depth); err != nil {
			return err
		}
	}
	return nil
}

func (p *packing) entry(ctx context.Context, e Entry, name string, depth int) error {
	h := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: int64(e.Mode.Perm()), Size: e.Size, ModTime: e.ModTime, Format: tar.FormatPAX,
	}
	switch {
	case e.isDir():
		h.Typeflag, h.Name, h.Size = tar.TypeDir, name+"/", 0
		if err := p.out.WriteHeader(h); err != nil {
			return err
		}
		return p.dir(ctx, e.digest, name, depth+1)
	case e.isLink():
		h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, e.Target, 0
		return p.out.WriteHeader(h)
	}
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	if err := p.content(ctx, e); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (p *packing) content(ctx context.Context, e Entry) (err error) {
	r, err := openContent(ctx, p.blobs, e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	_, err = io.Copy(p.out, r) // the content is verified at its end
	return err
}
