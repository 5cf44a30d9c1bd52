package tree

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/session/store"
)

// Workspace is what Take needs of a sandbox.
type Workspace interface {
	// Files returns the files of the sandbox, whose relative paths begin in the workspace.
	Files() primitives.Files
	// Pack returns the workspace as a tar archive.
	Pack(ctx context.Context) (io.ReadCloser, error)
}

// Index caches the result of the last Take of a workspace, so that the next Take reads only
// files that have changed since. The zero value is empty. It must be used by one goroutine at a
// time, and for one sandbox only.
type Index struct {
	files map[string]indexed
	dirs  map[store.Digest]bool // the listings of the last state
}

// indexed is a file as of the last read.
type indexed struct {
	revision string
	size     int64
	digest   store.Digest
	// recent says that the file changed just before it was read. A later change within the same
	// clock tick of the file system would have the same revision, so the next Take reads the
	// file again.
	recent bool
}

// recently exceeds the clock tick of every file system.
const recently = 2 * time.Second

// State is a stored state of a workspace.
type State struct {
	Root  store.Digest // of the listing of the workspace
	Files int          // regular files
	Bytes int64        // of all files
	Read  int          // files whose content was read
	// Stored is how many bytes were given to the store, which may have had some of them.
	Stored int64
	// Unreadable names at most 10 of the files that could not be read and are missing in the
	// state.
	Unreadable []string
}

const maxUnreadable = 10

// Up to manyReads files, or one in readsOneIn of the workspace, Take reads the files one by one,
// each with a round trip to the sandbox. For more, it reads the whole workspace as one stream.
const (
	manyReads  = 16
	readsOneIn = 64
)

// Take stores the state of a workspace. If the workspace has more than limit bytes, Take reads
// nothing and returns [primitives.ErrLimit]. A file that changes meanwhile is stored with one
// of its contents, or a mix; the next Take reads it again.
func (x *Index) Take(ctx context.Context, ws Workspace, blobs Blobs, limit int64) (State, error) {
	started := time.Now()
	infos, err := ws.Files().List(ctx, ".", primitives.ListOptions{Depth: -1})
	if err != nil {
		return State{}, err
	}
	t := &taking{index: x, blobs: blobs, found: make(map[string]indexed), dirs: make(map[store.Digest]bool)}
	var total int64
	var newest time.Time
	for _, info := range infos {
		if !info.Mode.IsRegular() {
			continue
		}
		if total += info.Size; total > limit {
			return State{}, fmt.Errorf("%w: the workspace is larger than %d bytes; raise MaxWorkspace or keep less in it", primitives.ErrLimit, limit)
		}
		if newest.Before(info.ModTime) && info.ModTime.Before(started) {
			newest = info.ModTime
		}
		if old, ok := x.files[info.Path]; ok && old.revision == info.Revision && !old.recent {
			t.found[info.Path] = old
			continue
		}
		t.changed = append(t.changed, info)
	}
	if err := t.read(ctx, ws, newest.Add(-recently)); err != nil {
		return State{}, err
	}
	if err := t.store(ctx, infos); err != nil {
		return State{}, err
	}
	x.files, x.dirs = t.found, t.dirs
	t.state.Files = len(t.found)
	return t.state, nil
}

// taking is one Take.
type taking struct {
	index   *Index
	blobs   Blobs
	changed []primitives.FileInfo // to be read, sorted by path
	found   map[string]indexed    // files whose content is stored
	dirs    map[store.Digest]bool
	state   State
}

// read stores the contents of the changed files. Files that changed after since are marked
// recent.
func (t *taking) read(ctx context.Context, ws Workspace, since time.Time) error {
	if len(t.changed) == 0 {
		return nil
	}
	var read []primitives.FileInfo // in the order of the digests
	contents := t.oneByOne(ctx, ws.Files(), &read)
	if len(t.changed) > max(manyReads, (len(t.changed)+len(t.found))/readsOneIn) {
		contents = t.packed(ctx, ws, &read)
	}
	sizes := make([]int64, 0, len(t.changed))
	counted := func(yield func(io.Reader, error) bool) {
		for r, err := range contents {
			if err != nil {
				yield(nil, err)
				return
			}
			sizes = append(sizes, 0)
			if !yield(&counter{r: r, n: &sizes[len(sizes)-1]}, nil) {
				return
			}
		}
	}
	digests, err := t.blobs.PutBlobs(ctx, counted)
	if err != nil {
		return err
	}
	if len(digests) != len(read) {
		return fmt.Errorf("the store returned %d digests for %d files", len(digests), len(read))
	}
	for i, info := range read {
		t.state.Stored += sizes[i]
		t.found[info.Path] = indexed{
			revision: info.Revision, size: sizes[i], digest: digests[i], recent: info.ModTime.After(since),
		}
	}
	t.state.Read = len(read)
	return nil
}

// counter counts the bytes that are read.
type counter struct {
	r io.Reader
	n *int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	*c.n += int64(n)
	return n, err
}

// oneByOne opens each file.
func (t *taking) oneByOne(ctx context.Context, files primitives.Files, read *[]primitives.FileInfo) iter.Seq2[io.Reader, error] {
	return func(yield func(io.Reader, error) bool) {
		for _, info := range t.changed {
			r, err := files.Open(ctx, info.Path)
			switch {
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, primitives.ErrNotRegular), errors.Is(err, primitives.ErrIsDirectory):
				continue // the file was just replaced
			case errors.Is(err, fs.ErrPermission):
				t.unreadable(info.Path)
				continue
			case err != nil:
				yield(nil, err)
				return
			}
			*read = append(*read, info)
			// A file that grows while it is read might never end.
			more := yield(io.LimitReader(r, info.Size+maxGrowth), nil)
			if err := r.Close(); err != nil && more {
				yield(nil, err)
				return
			}
			if !more {
				return
			}
		}
	}
}

// maxGrowth is how many bytes a file may have beyond its listed size.
const maxGrowth = 64 << 20

// packed reads the whole workspace in one stream.
func (t *taking) packed(ctx context.Context, ws Workspace, read *[]primitives.FileInfo) iter.Seq2[io.Reader, error] {
	return func(yield func(io.Reader, error) bool) {
		want := make(map[string]primitives.FileInfo, len(t.changed))
		for _, info := range t.changed {
			want[info.Path] = info
		}
		packed, err := ws.Pack(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		left := false
		err = func() error {
			in := archive.NewReader(packed, archive.Limit{})
			for {
				h, err := in.Next()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				info, ok := want[path.Clean(h.Name)]
				if !ok || h.Typeflag != tar.TypeReg {
					continue
				}
				delete(want, info.Path)
				*read = append(*read, info)
				if left = !yield(in, nil); left {
					return nil
				}
			}
		}()
		if err = errors.Join(err, packed.Close()); err != nil && !left {
			yield(nil, err)
		}
		for name := range want { // the file is gone or unreadable
			t.unreadable(name)
		}
	}
}

func (t *taking) unreadable(name string) {
	if len(t.state.Unreadable) < maxUnreadable {
		t.state.Unreadable = append(t.state.Unreadable, name)
		slices.Sort(t.state.Unreadable)
	}
}

// store stores the listings of all directories, the deepest ones first.
func (t *taking) store(ctx context.Context, infos []primitives.FileInfo) error {
	children := map[string][]Entry{".": nil}
	for _, info := range infos {
		if strings.HasPrefix(info.Path, "/") || !validName(path.Base(info.Path)) || path.Clean(info.Path) != info.Path {
			return fmt.Errorf("%q: %w", info.Path, primitives.ErrPathEscape)
		}
		dir := path.Dir(info.Path)
		e := Entry{Name: path.Base(info.Path), Mode: info.Mode & (fs.ModeType | fs.ModePerm), ModTime: info.ModTime}
		switch {
		case e.isDir():
			children[info.Path] = nil
		case e.isLink():
			e.Target = info.Target
		default:
			file, ok := t.found[info.Path]
			if !ok {
				continue
			}
			e.Size, e.Digest = file.size, file.digest
			t.state.Bytes += file.size
		}
		if _, ok := children[dir]; !ok {
			return fmt.Errorf("%q: its folder is not listed", info.Path)
		}
		children[dir] = append(children[dir], e)
	}
	dirs := slices.SortedFunc(maps.Keys(children), func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	digests := make(map[string]store.Digest, len(dirs))
	var fresh [][]byte
	// The workspace "." has as many slashes as its entries, so move it to the end.
	dirs = append(slices.DeleteFunc(dirs, func(dir string) bool { return dir == "." }), ".")
	for _, dir := range dirs {
		entries := children[dir]
		for i := range entries {
			if entries[i].isDir() {
				entries[i].Digest = digests[path.Join(dir, entries[i].Name)]
			}
		}
		slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
		listing := encode(entries)
		sum := sha256.Sum256(listing)
		digest := store.Digest(hex.EncodeToString(sum[:]))
		digests[dir] = digest
		if !t.index.dirs[digest] && !t.dirs[digest] {
			fresh = append(fresh, listing)
			t.state.Stored += int64(len(listing))
		}
		t.dirs[digest] = true
	}
	t.state.Root = digests["."]
	if len(fresh) == 0 {
		return nil
	}
	_, err := t.blobs.PutBlobs(ctx, func(yield func(io.Reader, error) bool) {
		for _, listing := range fresh {
			if !yield(bytes.NewReader(listing), nil) {
				return
			}
		}
	})
	return err
}
