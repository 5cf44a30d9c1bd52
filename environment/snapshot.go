package environment

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/sparse"
	"github.com/agentenv-dev/agentenv/primitives"
)

// workspaceLimit is how much of a workspace is read to this machine at once: for its
// changes, for a patch, and to move it.
var workspaceLimit = archive.Limit{Advice: "remove what is not needed from the workspace, or leave it out of the changes with ignore_changes"}

// notCounted is what never is a change, beside what is configured: git's own files
// are not part of what git can patch.
func (c Config) notCounted() []string { return append([]string{".git"}, c.IgnoreChanges...) }

// entry is one file or link of a snapshot.
type entry struct {
	mode   fs.FileMode
	size   int64
	sum    [sha256.Size]byte // of the content, or of the link's target
	offset int64             // of the content in the store
	target string            // of a link
}

func (e entry) isLink() bool { return e.mode&fs.ModeSymlink != 0 }

func (e entry) same(o entry) bool { return e.mode == o.mode && e.sameContent(o) }

func (e entry) sameContent(o entry) bool {
	return e.isLink() == o.isLink() && e.size == o.size && e.sum == o.sum
}

// snapshot is what a workspace held at one time. The contents lie in an unnamed
// file of this machine; without one only the sums are known.
type snapshot struct {
	files map[string]entry
	store *os.File
	size  int64
}

// takeSnapshot reads the workspace in one stream. It keeps the contents if keep
// is set, except those that are the same in known, which may be nil.
func takeSnapshot(ctx context.Context, p primitives.EnvironmentPrimitive, ignore []string, keep bool, known *snapshot) (_ *snapshot, err error) {
	r, err := primitives.Pack(ctx, p, ".", primitives.PackOptions{Ignore: ignore})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return readSnapshot(r, keep, known)
}

// readSnapshot is takeSnapshot for a packed workspace.
func readSnapshot(r io.Reader, keep bool, known *snapshot) (_ *snapshot, err error) {
	s := &snapshot{files: make(map[string]entry)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	in := archive.NewReader(r, workspaceLimit)
	sum := sha256.New()
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean(h.Name)
		if leadsOut(name) {
			return nil, fmt.Errorf("%q: %w", h.Name, primitives.ErrPathEscape)
		}
		var e entry
		switch h.Typeflag {
		case tar.TypeReg:
			if e, err = s.add(in, h, sum, keep, known, name); err != nil {
				return nil, err
			}
		case tar.TypeSymlink:
			e = entry{mode: fs.ModeSymlink | 0o777, target: h.Linkname, size: int64(len(h.Linkname)), sum: sha256.Sum256([]byte(h.Linkname))}
		default:
			continue
		}
		s.files[name] = e
	}
}

// add reads a regular file.
func (s *snapshot) add(r io.Reader, h *tar.Header, sum hash.Hash, keep bool, known *snapshot, name string) (entry, error) {
	e := entry{mode: fs.FileMode(h.Mode) & fs.ModePerm, size: h.Size, offset: s.size}
	sum.Reset()
	if !keep || h.Size == 0 {
		_, err := io.CopyN(sum, r, h.Size)
		sum.Sum(e.sum[:0])
		return e, inFile(name, err)
	}
	if err := s.open(); err != nil {
		return e, err
	}
	if _, err := s.store.Seek(s.size, io.SeekStart); err != nil {
		return e, err
	}
	content := sparse.NewWriter(s.store)
	_, err := io.CopyN(io.MultiWriter(sum, content), r, h.Size)
	if err = errors.Join(err, content.Close()); err != nil {
		return e, inFile(name, err)
	}
	sum.Sum(e.sum[:0])
	if known != nil {
		if old, ok := known.files[name]; ok && e.sameContent(old) {
			return e, s.store.Truncate(s.size) // a hole in what comes next must read as zero
		}
	}
	s.size += h.Size
	return e, nil
}

// inFile says in which file an error happened.
func inFile(name string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// open makes the store: a file without a name, which is gone with this program
// whatever happens to it.
func (s *snapshot) open() error {
	if s.store != nil {
		return nil
	}
	f, err := os.CreateTemp("", "agentenv-snapshot-*")
	if err != nil {
		return err
	}
	s.store = f
	return os.Remove(f.Name())
}

// content reads a file or the target of a link.
func (s *snapshot) content(e entry) *io.SectionReader {
	if e.isLink() {
		return io.NewSectionReader(stringReaderAt(e.target), 0, e.size)
	}
	if s.store == nil {
		return io.NewSectionReader(stringReaderAt(""), 0, 0)
	}
	return io.NewSectionReader(s.store, e.offset, e.size)
}

// pack writes what [readSnapshot] reads.
func (s *snapshot) pack(w io.Writer) error {
	out := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		e := s.files[name]
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(e.mode.Perm()), Size: e.size, Format: tar.FormatPAX}
		if e.isLink() {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, e.target, 0
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if e.isLink() {
			continue
		}
		if _, err := io.Copy(out, s.content(e)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return out.Close()
}

// clone returns a snapshot that can be closed by itself.
func (s *snapshot) clone() (*snapshot, error) {
	if s == nil || s.store == nil {
		return s, nil
	}
	fd, err := unix.FcntlInt(s.store.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("share what the workspace began with: %w", err)
	}
	c := *s
	c.store = os.NewFile(uintptr(fd), s.store.Name())
	return &c, nil
}

func (s *snapshot) close() error {
	if s == nil || s.store == nil {
		return nil
	}
	return s.store.Close()
}

// stringReaderAt reads from a string.
type stringReaderAt string

func (s stringReaderAt) ReadAt(b []byte, off int64) (int, error) {
	if off >= int64(len(s)) {
		return 0, io.EOF
	}
	n := copy(b, s[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// baseline is the workspace as it was when the sources were placed.
type baseline struct {
	mu     sync.RWMutex                             // held for reading while the store is in use
	read   func(context.Context) (*snapshot, error) // brings snap when it is first needed; nil if that is done
	snap   *snapshot
	err    error // why there is none
	closed bool
}

// take remembers the workspace, or that a sandbox which is attached to does. A
// sandbox that cannot pack has no baseline, which shows when it is asked for.
func (b *baseline) take(ctx context.Context, p primitives.EnvironmentPrimitive, ignore []string, own owner) error {
	if own.placed {
		b.read = func(ctx context.Context) (*snapshot, error) { return readBaseline(ctx, p, own) }
		return nil
	}
	b.snap, b.err = takeSnapshot(ctx, p, ignore, true, nil)
	if errors.Is(b.err, errors.ErrUnsupported) {
		return nil
	}
	return b.err
}

// use gives the baseline to a function that runs before it is closed.
func (b *baseline) use(ctx context.Context, f func(*snapshot) error) error {
	if err := b.find(ctx); err != nil {
		return err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	switch {
	case b.closed:
		return ErrClosed
	case b.err != nil:
		return b.err
	}
	return f(b.snap)
}

// find reads the baseline unless that is done. One that could not be read is
// tried again the next time.
func (b *baseline) find(ctx context.Context) error {
	b.mu.RLock()
	known := b.read == nil
	b.mu.RUnlock()
	if known {
		return nil // without keeping others from using it
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.read == nil || b.closed {
		return nil
	}
	snap, err := b.read(ctx)
	if err != nil {
		return fmt.Errorf("read what the workspace began with: %w", err)
	}
	b.snap, b.read = snap, nil
	return nil
}

// share takes over what another baseline knows; either may be closed first.
func (b *baseline) share(of *baseline) error {
	of.mu.RLock()
	defer of.mu.RUnlock()
	switch {
	case of.closed:
		return ErrClosed
	case of.read != nil:
		return nil // each finds it in its own sandbox
	}
	snap, err := of.snap.clone()
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.snap
	b.read, b.snap, b.err = nil, snap, of.err
	return own.close()
}

func (b *baseline) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.snap.close()
}
