package files

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// maxDirs is how many directories a batch keeps open.
const maxDirs = 128

// WriteFiles implements primitives.BatchWriter. A directory is looked up once
// for all the files in it that follow each other closely.
func (f *FS) WriteFiles(ctx context.Context, files []primitives.File) ([]error, error) {
	errs := make([]error, len(files))
	if err := f.alive(); err != nil {
		return errs, f.fail("write", "", err)
	}
	b := batch{f: f, dirs: map[string]int{}}
	defer b.forget()
	var content bytes.Reader
	for i := range files {
		if err := ctx.Err(); err != nil {
			return errs, f.fail("write", "", err)
		}
		content.Reset(files[i].Content)
		errs[i] = f.fail("write", files[i].Path, b.write(ctx, &files[i], &content))
	}
	return errs, nil
}

// batch is one call of WriteFiles.
type batch struct {
	f    *FS
	dirs map[string]int // open directories by the path before the last slash
}

func (b *batch) write(ctx context.Context, file *primitives.File, content *bytes.Reader) error {
	opts := primitives.WriteOptions{Mode: file.Mode}
	if err := b.f.begin(ctx, file.Path); err != nil {
		return err
	}
	if err := checkWrite(opts); err != nil {
		return err
	}
	base, leaf := splitPath(file.Path)
	dir, err := b.dir(file.Path, base)
	if err != nil {
		return err
	}
	j := job{f: b.f, dir: dir, leaf: leaf, opts: opts}
	st, err := lstatat(dir, leaf)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return b.f.writeFile(ctx, file.Path, content, opts)
	default:
		j.old = &st
	}
	if j.old == nil && strings.HasSuffix(file.Path, "/") {
		return primitives.ErrIsDirectory
	}
	if err := j.check(); err != nil {
		return err
	}
	err = j.replace(ctx, content)
	if errors.Is(err, unix.ENOENT) && content.Size() == int64(content.Len()) {
		return b.f.writeFile(ctx, file.Path, content, opts) // the directory was removed since it was opened
	}
	return err
}

// dir opens the directory of a file, or finds it open. One that was opened
// stays the right one: nothing can make it another.
func (b *batch) dir(name, base string) (int, error) {
	if fd, ok := b.dirs[base]; ok {
		return fd, nil
	}
	t, err := b.f.tree(name)
	if err != nil {
		return -1, err
	}
	defer t.close()
	fd, err := t.openDir(base, true)
	if err != nil {
		return -1, err
	}
	if len(b.dirs) >= maxDirs {
		b.forget()
	}
	b.dirs[base] = fd
	return fd, nil
}

func (b *batch) forget() {
	for _, fd := range b.dirs {
		unix.Close(fd)
	}
	clear(b.dirs)
}
