package files

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/beneath"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/glob"
)

// Pack implements primitives.Packer. It leaves out what vanishes meanwhile; a directory or file
// that cannot be read is an error. ctx covers reading, too.
func (f *FS) Pack(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
	ignore, err := glob.Compile("Ignore", opts.Ignore)
	if err != nil {
		return nil, f.fail("pack", dir, err)
	}
	p := &packer{fs: f, dir: dir, ignore: ignore, ctx: ctx}
	if opts.Only != nil {
		p.from, err = f.pick(ctx, dir, opts.Only)
	} else {
		p.from, err = f.walkAll(ctx, dir)
	}
	if err != nil {
		return nil, f.fail("pack", dir, err)
	}
	p.tar = tar.NewWriter(&p.out)
	return p, nil
}

// finder finds what to pack.
type finder interface {
	next() (e *entry, ok bool, err error)
	enter(e *entry) // next goes on with the content of the directory e
	close()
}

func (f *FS) walkAll(ctx context.Context, dir string) (finder, error) {
	w, err := f.walk(ctx, dir)
	if err == nil {
		w.strict = true
	}
	return w, err
}

// picker finds files by their paths.
type picker struct {
	t     tree
	names []string // that follow
	place place    // of the last one
}

func (f *FS) pick(ctx context.Context, dir string, names []string) (finder, error) {
	dir = cmp.Or(dir, ".")
	if err := f.begin(ctx, dir); err != nil {
		return nil, err
	}
	t, err := f.tree(dir)
	if err != nil {
		return nil, err
	}
	defer t.close()
	fd, err := t.openDir(dir, false)
	if err != nil {
		return nil, err
	}
	return &picker{t: tree{root: beneath.Root{FD: fd}}, names: names, place: place{dir: -1}}, nil
}

func (p *picker) next() (*entry, bool, error) {
	for len(p.names) > 0 {
		p.leave()
		name := p.names[0]
		p.names = p.names[1:]
		e, err := p.find(name)
		if err == nil && !e.isDir() {
			return e, true, nil
		}
		if err != nil && !skippable(err) {
			return nil, false, err
		}
	}
	return nil, false, nil
}

func (p *picker) find(name string) (*entry, error) {
	clean, err := inside(name)
	if err != nil {
		return nil, err
	}
	at, err := p.t.place(clean, false)
	if err != nil {
		return nil, err
	}
	p.place = at
	st, err := lstatat(at.dir, at.leaf)
	return &entry{dir: at.dir, name: at.leaf, path: name, stat: st}, err
}

func (p *picker) enter(*entry) {}

// leave closes the directory of the last file.
func (p *picker) leave() {
	if p.place.dir >= 0 {
		p.place.close()
	}
	p.place.dir = -1
}

func (p *picker) close() {
	p.leave()
	unix.Close(p.t.root.FD)
}

// packer makes the archive piece by piece, as it is read. It needs no goroutine, so none can leak.
type packer struct {
	fs     *FS
	dir    string
	ignore glob.Set
	ctx    context.Context //nolint:containedctx // it covers reading, too

	mu   sync.Mutex // Close may be called during a Read
	from finder     // nil when closed
	tar  *tar.Writer
	out  bytes.Buffer // packed but not read yet
	file *os.File     // the large file that is being packed
	name string       // its path
	was  string       // its revision at the beginning
	left int64        // bytes of it that are not packed yet
	err  error
}

// Read implements io.Reader.
func (p *packer) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.out.Len() == 0 && p.err == nil {
		p.err = p.step()
	}
	if p.out.Len() > 0 {
		return p.out.Read(b)
	}
	return 0, p.err
}

// Close implements io.Closer. Closing again does nothing.
func (p *packer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.from == nil {
		return nil
	}
	p.from.close()
	p.from = nil
	if p.file != nil {
		_ = p.file.Close()
	}
	p.out.Reset()
	if p.err == nil {
		p.err = p.fs.fail("pack", p.dir, fmt.Errorf("%w: the archive was closed", os.ErrClosed))
	}
	return nil
}

// step makes the next piece. Its error is for the reader; io.EOF means the end.
func (p *packer) step() error {
	if err := p.ctx.Err(); err != nil {
		return p.fs.fail("pack", p.dir, err)
	}
	if p.file != nil {
		return p.fs.fail("pack", path.Join(p.dir, p.name), p.piece())
	}
	e, ok, err := p.from.next()
	if err != nil {
		return p.fs.fail("pack", p.dir, err)
	}
	if !ok {
		if err := p.tar.Close(); err != nil {
			return p.fs.fail("pack", p.dir, err)
		}
		return io.EOF // the reader first gets what tar.Close has written
	}
	if p.ignore.Match(e.path) {
		return nil
	}
	err = p.entry(e)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, primitives.ErrNotRegular) || errors.Is(err, primitives.ErrIsDirectory) {
		return nil // removed or replaced since it was listed
	}
	if _, picked := p.from.(*picker); picked && isDenied(err) {
		return nil
	}
	return p.fs.fail("pack", path.Join(p.dir, e.path), err)
}

func (p *packer) entry(e *entry) error {
	info, err := describe(e.dir, e.name, e.path, &e.stat)
	if err != nil {
		return err
	}
	h := &tar.Header{
		Name:    e.path,
		Mode:    int64(info.Mode.Perm()),
		ModTime: info.ModTime,
		Format:  tar.FormatPAX, // other formats round times and limit names
	}
	switch info.Mode.Type() {
	case fs.ModeDir:
		p.from.enter(e)
		h.Typeflag, h.Name = tar.TypeDir, e.path+"/"
		return p.tar.WriteHeader(h)
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, info.Target
		return p.tar.WriteHeader(h)
	case 0:
		h.Typeflag = tar.TypeReg
		return p.regular(h, e)
	}
	return nil
}

// regular packs a small file whole, but only the header of a large one.
func (p *packer) regular(h *tar.Header, e *entry) error {
	fd, st, err := openRegular(e.dir, e.name, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), e.name)
	buf := p.fs.chunks.Get().(*[]byte)
	defer p.fs.chunks.Put(buf)
	var data []byte
	changed := true
	for n := 0; changed && n < smallReads; n++ {
		settled := true
		if _, picked := p.from.(*picker); picked {
			if settled, err = settle(p.ctx, fd, &st); err != nil {
				return errors.Join(err, file.Close())
			}
		}
		was := revision(&st)
		if !settled {
			was = "" // none: a change may not show
		}
		if st.Size > chunkSize {
			h.Size = st.Size
			p.file, p.name, p.was, p.left = file, e.path, was, st.Size
			return p.tar.WriteHeader(h)
		}
		read, err := file.ReadAt((*buf)[:st.Size], 0)
		if err == nil || errors.Is(err, io.EOF) {
			err = unix.Fstat(fd, &st)
		}
		if err != nil {
			return errors.Join(err, file.Close())
		}
		data, changed = (*buf)[:read], revision(&st) != was
	}
	defer file.Close()
	h.Size = int64(len(data))
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	if _, err := p.tar.Write(data); err != nil || !changed {
		return err
	}
	return p.tellChanged(e.path)
}

// smallReads is how often a small file that changes meanwhile is read.
const smallReads = 3

// tellChanged says that the file that was just packed changed meanwhile.
func (p *packer) tellChanged(name string) error {
	if _, picked := p.from.(*picker); !picked {
		return nil
	}
	return p.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "changed", PAXRecords: map[string]string{primitives.PackChanged: name}})
}

// piece packs the next piece of a large file.
func (p *packer) piece() error {
	buf := p.fs.chunks.Get().(*[]byte)
	defer p.fs.chunks.Put(buf)
	n, err := io.ReadFull(p.file, (*buf)[:min(p.left, chunkSize)])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file became shorter while it was packed; pack it again when no program writes to it: %w", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return err
	}
	if _, err := p.tar.Write((*buf)[:n]); err != nil {
		return err
	}
	if p.left -= int64(n); p.left > 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(p.file.Fd()), &st); err != nil {
		return err
	}
	file := p.file
	p.file = nil
	if err := file.Close(); err != nil || revision(&st) == p.was {
		return err
	}
	return p.tellChanged(p.name)
}

// Unpack implements primitives.Unpacker.
func (f *FS) Unpack(ctx context.Context, dir string, r io.Reader) error {
	end, err := f.beginWrite()
	if err != nil {
		return f.fail("unpack", dir, err)
	}
	defer end()
	src, release := f.source(ctx, r)
	defer release()
	return f.fail("unpack", dir, f.unpack(ctx, dir, src))
}

func (f *FS) unpack(ctx context.Context, dir string, r io.Reader) error {
	if dir == "" {
		dir = "."
	}
	if err := f.begin(ctx, dir); err != nil {
		return err
	}
	t, err := f.tree(dir)
	if err != nil {
		return err
	}
	defer t.close()
	fd, err := t.openDir(dir, true)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	u := unpacker{f: f, t: tree{root: beneath.Root{FD: fd}, mkdir: t.mkdir}, tar: tar.NewReader(r)}
	err = u.all(ctx)
	if derr := u.finish(); err == nil {
		err = derr
	}
	return err
}
