package files

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// maxDirs is how many directories a batch may keep open.
const maxDirs = 128

// WriteFiles implements primitives.BatchWriter.
func (f *FS) WriteFiles(ctx context.Context, files []primitives.File) ([]error, error) {
	errs, err := f.WriteFilesSeq(ctx, slices.Values(files))
	return append(errs, make([]error, len(files)-len(errs))...), err
}

// WriteFilesSeq is WriteFiles for files that become known one after another. It has read a file's
// content when it takes the next file. The returned slice has one entry per file taken.
//
// It looks up a directory once for all its files that follow each other closely. A missing
// directory appears together with all of its files that follow each other.
func (f *FS) WriteFilesSeq(ctx context.Context, files iter.Seq[primitives.File]) ([]error, error) {
	if err := f.alive(); err != nil {
		return nil, f.fail("write", "", err)
	}
	b := batch{f: f, dirs: map[string]int{}}
	defer b.forget()
	var content bytes.Reader
	var stop error
	for file := range files {
		if stop = ctx.Err(); stop != nil {
			break
		}
		content.Reset(file.Content)
		b.errs = append(b.errs, nil)
		b.errs[len(b.errs)-1] = f.fail("write", file.Path, b.write(ctx, &file, &content))
	}
	b.publish(ctx)
	return b.errs, f.fail("write", "", stop)
}

// batch is the state of one call of WriteFilesSeq.
type batch struct {
	f     *FS
	errs  []error
	dirs  map[string]int // open directories by the file's path up to its last slash
	fresh *newDir        // the directory that is being filled, or nil
}

func (b *batch) write(ctx context.Context, file *primitives.File, content *bytes.Reader) error {
	if err := b.f.begin(ctx, file.Path); err != nil {
		return err
	}
	j := job{f: b.f, opts: primitives.WriteOptions{Mode: file.Mode}}
	if err := checkWrite(j.opts); err != nil {
		return err
	}
	base, leaf := splitPath(file.Path)
	if b.fresh != nil && !b.fresh.holds(base) {
		b.publish(ctx)
	}
	dir, err := b.dir(file.Path, base)
	if err != nil && b.fresh != nil {
		b.publish(ctx)
		return b.f.writeFile(ctx, file.Path, content, j.opts)
	}
	if err != nil {
		return err
	}
	j.dir, j.leaf = dir, leaf
	fresh := b.fresh
	if fresh == nil {
		err = b.place(ctx, &j, file, content)
	} else if err = b.placeUnseen(ctx, &j, file, content); err == nil {
		fresh.note(len(b.errs)-1, file)
	}
	if errors.Is(err, unix.ENOENT) && content.Size() == int64(content.Len()) {
		return b.f.writeFile(ctx, file.Path, content, j.opts) // the directory was removed since it was opened
	}
	return err
}

// placeUnseen writes a file into a directory that is not visible yet, so the file needs no
// temporary name.
func (b *batch) placeUnseen(ctx context.Context, j *job, file *primitives.File, content *bytes.Reader) error {
	if !strings.HasSuffix(file.Path, "/") {
		err := j.create(ctx, j.leaf, content)
		if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EISDIR) {
			return err
		}
	}
	return b.place(ctx, j, file, content)
}

// place writes a file into an open directory.
func (b *batch) place(ctx context.Context, j *job, file *primitives.File, content *bytes.Reader) error {
	st, err := lstatat(j.dir, j.leaf)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		b.publish(ctx)
		return b.f.writeFile(ctx, file.Path, content, j.opts)
	default:
		j.old = &st
	}
	if j.old == nil && strings.HasSuffix(file.Path, "/") {
		return primitives.ErrIsDirectory
	}
	if err := j.check(); err != nil {
		return err
	}
	return j.replace(ctx, content)
}

// dir returns the open directory of a file. An open directory stays the right one whatever happens
// to its name. A missing directory becomes, or is made in, the directory that is being filled.
func (b *batch) dir(name, base string) (int, error) {
	if fd, ok := b.dirs[base]; ok {
		return fd, nil
	}
	fd, err := b.open(name, base)
	if err != nil {
		return -1, err
	}
	if len(b.dirs) >= maxDirs {
		b.forget()
	}
	b.dirs[base] = fd
	return fd, nil
}

func (b *batch) open(name, base string) (int, error) {
	if b.fresh != nil {
		return b.fresh.openDir(b.f, base)
	}
	t, err := b.f.tree(name)
	if err != nil {
		return -1, err
	}
	defer t.close()
	fd, err := t.openDir(base, false)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if b.fresh = b.f.newDir(t, base); b.fresh != nil {
		return b.fresh.openDir(b.f, base)
	}
	return t.openDir(base, true)
}

// publish gives the directory that was filled its name.
func (b *batch) publish(ctx context.Context) {
	d := b.fresh
	if d == nil {
		return
	}
	b.fresh = nil
	defer d.close()
	if renameNew(d.parent, d.temp, d.parent, d.name) == nil {
		return
	}
	// Most likely another program has made the directory meanwhile: move the files into it one by
	// one.
	b.forget()
	for _, w := range d.files {
		b.errs[w.index] = b.f.fail("write", w.path, d.moveOut(ctx, b.f, w))
	}
	d.remove()
}

func (b *batch) forget() {
	for _, fd := range b.dirs {
		unix.Close(fd)
	}
	clear(b.dirs)
}
