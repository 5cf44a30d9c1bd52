// Package workspace compares two states of a workspace, and writes or applies the difference.
//
// snapshot.go reads and compares snapshots. patch.go writes the difference in git's format,
// with base85.go for binary files. apply.go applies it to a folder of this machine. paths.go
// has the rules for paths and patterns.
package workspace

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
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/internal/sparse"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Limit bounds how much of a workspace is read to this machine at once: for its changes, for a
// patch, and to move it.
var Limit = archive.Limit{Advice: "remove what is not needed from the workspace, or leave it out of the changes with ignore_changes"}

// Entry is one file or link of a snapshot.
type Entry struct {
	Mode   fs.FileMode       // type and permission
	Size   int64             // of the content, or of the link's target
	sum    [sha256.Size]byte // of the content, or of the link's target
	offset int64             // of the content in the store
	target string            // of a link
}

func (e Entry) isLink() bool { return e.Mode&fs.ModeSymlink != 0 }

func (e Entry) same(o Entry) bool { return e.Mode == o.Mode && e.sameContent(o) }

func (e Entry) sameContent(o Entry) bool {
	return e.isLink() == o.isLink() && e.Size == o.Size && e.sum == o.sum
}

// Snapshot is the state of a workspace at one time. The contents are in an unnamed file of this
// machine. Without that file only the digests are known.
type Snapshot struct {
	files map[string]Entry
	store *os.File
	size  int64
}

// Take reads the workspace in one stream. If keep is true, it stores the contents, except those
// that are the same in known, which may be nil.
func Take(ctx context.Context, p primitives.EnvironmentPrimitive, ignore []string, keep bool, known *Snapshot) (_ *Snapshot, err error) {
	r, err := primitives.Pack(ctx, p, ".", primitives.PackOptions{Ignore: ignore})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return Read(r, keep, known)
}

// Read is like Take, for a packed workspace.
func Read(r io.Reader, keep bool, known *Snapshot) (_ *Snapshot, err error) {
	s := &Snapshot{files: make(map[string]Entry)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	in := archive.NewReader(r, Limit)
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
		if LeadsOut(name) {
			return nil, fmt.Errorf("%q: %w", h.Name, primitives.ErrPathEscape)
		}
		var e Entry
		switch h.Typeflag {
		case tar.TypeReg:
			if e, err = s.add(in, h, sum, keep, known, name); err != nil {
				return nil, err
			}
		case tar.TypeSymlink:
			e = Entry{Mode: fs.ModeSymlink | 0o777, target: h.Linkname, Size: int64(len(h.Linkname)), sum: sha256.Sum256([]byte(h.Linkname))}
		default:
			continue
		}
		s.files[name] = e
	}
}

// add reads a regular file.
func (s *Snapshot) add(r io.Reader, h *tar.Header, sum hash.Hash, keep bool, known *Snapshot, name string) (Entry, error) {
	e := Entry{Mode: fs.FileMode(h.Mode) & fs.ModePerm, Size: h.Size, offset: s.size}
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
			return e, s.store.Truncate(s.size) // a hole in the next content must read as zero
		}
	}
	s.size += h.Size
	return e, nil
}

// inFile adds the name of the file to an error.
func inFile(name string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// open creates the store: a file without a name, which disappears when this program ends, even
// if it is killed.
func (s *Snapshot) open() error {
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

// content returns a reader of a file's content or of a link's target.
func (s *Snapshot) content(e Entry) *io.SectionReader {
	if e.isLink() {
		return io.NewSectionReader(stringReaderAt(e.target), 0, e.Size)
	}
	if s.store == nil {
		return io.NewSectionReader(stringReaderAt(""), 0, 0)
	}
	return io.NewSectionReader(s.store, e.offset, e.Size)
}

// Pack writes the snapshot in the format that [Read] reads.
func (s *Snapshot) Pack(w io.Writer) error {
	out := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		e := s.files[name]
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(e.Mode.Perm()), Size: e.Size, Format: tar.FormatPAX}
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

// Clone returns a copy of the snapshot that must be closed separately.
func (s *Snapshot) Clone() (*Snapshot, error) {
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

// Close releases the contents. It does nothing for a nil snapshot.
func (s *Snapshot) Close() error {
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

// Change is a file or link that differs between two snapshots. Old is nil for a new file, New
// for a removed one.
type Change struct {
	Path     string
	Old, New *Entry
}

// Compare returns the changes from old to current, sorted by path.
func Compare(old, current *Snapshot) []Change {
	var changes []Change
	for name, was := range old.files {
		is, ok := current.files[name]
		switch {
		case !ok:
			changes = append(changes, Change{Path: name, Old: &was})
		case !was.same(is):
			changes = append(changes, Change{Path: name, Old: &was, New: &is})
		}
	}
	for name, is := range current.files {
		if _, ok := old.files[name]; !ok {
			changes = append(changes, Change{Path: name, New: &is})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return changes
}
