package workspace

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Learn stores the contents of an archive that is unpacked into the folder dir of a workspace at the same time, so that
// the next Take need not read them back. Take believes that a file has the content if it has the size and the
// modification time of the archive. Learn must not be called after the first Take. After Expect it does nothing.
func (x *Index) Learn(ctx context.Context, r io.Reader, dir string, blobs Blobs, limit archive.Limit) error {
	if x.expects {
		return nil
	}
	found := make(map[string]tracked, len(x.files))
	for _, f := range x.files {
		found[f.info.Path] = f
	}
	in := archive.NewReader(r, limit)
	var cut cutter
	put := maps.Clone(x.blobs)
	if put == nil {
		put = make(map[Digest]struct{})
	}
	var failed error
	_, err := blobs.PutBlobs(ctx, func(yield func(io.Reader, error) bool) {
		stop := errors.New("the store takes no more")
		emit := func(d Digest, data []byte) error {
			if _, known := put[d]; known {
				return nil
			}
			put[d] = struct{}{}
			x.unclaimed += int64(len(data))
			if !yield(bytes.NewReader(data), nil) {
				return stop
			}
			return nil
		}
		for {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			var f tracked
			if err == nil {
				f, err = learned(h, in, dir, &cut, emit)
			}
			switch {
			case errors.Is(err, stop):
				return
			case err != nil:
				failed = err
				yield(nil, err)
				return
			case f.info.Path == "":
				// A hard link becomes a copy, whose content Take reads.
				delete(found, path.Join(dir, h.Name))
			default:
				if was, ok := found[f.info.Path]; ok && f.info.IsDir() && !was.info.IsDir() {
					clear(found) // a link to a folder stays, and what follows goes where it leads
				}
				found[f.info.Path] = f
			}
		}
	})
	if err = errors.Join(failed, err); err != nil {
		x.files = nil
		return err
	}
	dropLinked(found)
	x.files = slices.SortedFunc(maps.Values(found), func(a, b tracked) int { return strings.Compare(a.info.Path, b.info.Path) })
	x.blobs = put
	return nil
}

// dropLinked removes what an archive has below a link: it is unpacked where that leads.
func dropLinked(found map[string]tracked) {
	for name := range found {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if at, ok := found[dir]; ok && !at.info.IsDir() {
				clear(found) // and nobody knows what it has replaced there
				return
			}
		}
	}
}

// learned reads one entry of an archive. The path of the result is empty if the entry is no file, link or folder.
func learned(h *tar.Header, r io.Reader, dir string, cut *cutter, emit func(Digest, []byte) error) (f tracked, err error) {
	name := path.Join(dir, h.Name)
	if LeadsOut(name) {
		return f, fmt.Errorf("%q: %w", h.Name, primitives.ErrPathEscape)
	}
	info := primitives.FileInfo{Path: name, Mode: fs.FileMode(h.Mode) & fs.ModePerm, ModTime: h.ModTime}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		f.digest, f.pieces, f.size, err = cut.cut(r, emit)
		info.Size = f.size
	case tar.TypeSymlink:
		info.Mode, info.Target = fs.ModeSymlink|fs.ModePerm, h.Linkname
	case tar.TypeDir:
		info.Mode |= fs.ModeDir
	default:
		return tracked{}, nil
	}
	f.info = info
	return f, inFile(name, err)
}

// Read stores the state that an archive has, and returns how many bytes of content it stored.
func Read(ctx context.Context, r io.Reader, blobs Blobs, limit archive.Limit) (state State, stored int64, err error) {
	var x Index
	if err := x.Learn(ctx, r, "", blobs, limit); err != nil {
		return State{}, 0, err
	}
	t := &taking{index: &Index{}, blobs: blobs, dirty: map[string]bool{".": true}}
	for _, f := range x.files {
		if f.info.Path != "." {
			t.files = append(t.files, f)
			t.touch(f.info)
		}
	}
	t.addFolders()
	err = t.list(ctx)
	return t.state, x.Claim(), err
}

// addFolders adds the folders that an archive does not name.
func (t *taking) addFolders() {
	var missing []tracked
	for dir := range t.dirty {
		if !t.isListed(dir) {
			missing = append(missing, tracked{info: primitives.FileInfo{Path: dir, Mode: fs.ModeDir | 0o755}})
		}
	}
	t.files = append(t.files, missing...)
	slices.SortFunc(t.files, func(a, b tracked) int { return strings.Compare(a.info.Path, b.info.Path) })
}

// Expect makes the index know the contents of a stored state. If begun is true, a sandbox has just begun with that state,
// and the next Take believes that a file has its content; see Learn.
func (x *Index) Expect(ctx context.Context, blobs Blobs, root Digest, begun bool) error {
	known, err := load(ctx, blobs, root)
	if err != nil {
		return err
	}
	x.blobs = make(map[Digest]struct{}, len(known.files))
	for name, e := range known.files {
		if e.isLink() {
			continue
		}
		f := tracked{info: primitives.FileInfo{Path: name, ModTime: e.ModTime}, size: e.Size, digest: e.digest}
		if e.pieces {
			if f.pieces, err = piecesOf(ctx, blobs, e); err != nil {
				return inFile(name, err)
			}
		}
		f.hold(x.blobs)
		if begun {
			x.files = append(x.files, f)
		}
	}
	slices.SortFunc(x.files, func(a, b tracked) int { return strings.Compare(a.info.Path, b.info.Path) })
	x.expects = begun
	return nil
}
