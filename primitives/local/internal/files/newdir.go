package files

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/beneath"
)

// newDir is a directory that a batch makes. The batch fills it under a temporary name, so that its
// files need no temporary names, and then renames it. That is no slower than making the directory
// and renaming a single file.
type newDir struct {
	parent int    // the open directory in which it will appear
	name   string // its final name
	temp   string // its temporary name
	path   string // the prefix of its files' paths in the batch, ending in a slash
	root   beneath.Root
	files  []unseen
}

// unseen is a file in a newDir, which is not visible yet.
type unseen struct {
	index int // in the batch
	path  string
	opts  primitives.WriteOptions
}

// newDir makes the first missing directory of a path. It returns nil in the difficult cases: a
// dangling link, and a ".." after the missing part.
func (f *FS) newDir(t tree, base string) *newDir {
	for {
		above, name := splitPath(base)
		if name == "." {
			return nil
		}
		parent, err := t.openDir(above, false)
		switch {
		case errors.Is(err, unix.ENOENT):
			base = above
			continue
		case err != nil:
			return nil
		}
		d := &newDir{parent: parent, name: name, temp: tempName(), path: strings.TrimRight(base, "/") + "/"}
		if _, err := lstatat(parent, name); errors.Is(err, unix.ENOENT) {
			if err = f.mkdirAt(parent, d.temp, parentMode); err == nil {
				d.root.FD, err = openat(parent, d.temp, dirFlags|unix.O_NOFOLLOW, 0)
			}
			if err == nil {
				return d
			}
			_ = unix.Unlinkat(parent, d.temp, unix.AT_REMOVEDIR) // it may not exist
		}
		unix.Close(parent)
		return nil
	}
}

func (d *newDir) close() {
	unix.Close(d.root.FD)
	unix.Close(d.parent)
}

// holds reports whether a directory is d or below it. It compares the text of the path only.
func (d *newDir) holds(base string) bool {
	rest, ok := strings.CutPrefix(base, d.path)
	if !ok || len(base) >= unix.PathMax {
		return false
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == "." || part == ".." {
			return false
		}
	}
	return true
}

// openDir opens a directory that d holds.
func (d *newDir) openDir(f *FS, base string) (int, error) {
	mkdir := func(dir int, name string) error { return f.mkdirAt(dir, name, parentMode) }
	return d.root.OpenDir(strings.TrimPrefix(base, d.path), beneath.Options{Mkdir: mkdir})
}

// note records that a file of the batch was written.
func (d *newDir) note(index int, file *primitives.File) {
	d.files = append(d.files, unseen{index, file.Path, primitives.WriteOptions{Mode: file.Mode}})
}

// moveOut moves one of the files to its final path.
func (d *newDir) moveOut(ctx context.Context, f *FS, w unseen) error {
	base, leaf := splitPath(w.path)
	from, err := d.root.OpenDir(strings.TrimPrefix(base, d.path), noOptions)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	if moved, err := f.moveNew(from, leaf, w.path); moved || err != nil {
		return err
	}
	fd, _, err := openRegular(from, leaf, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), leaf)
	defer file.Close()
	return f.writeFile(ctx, w.path, struct{ io.Reader }{file}, w.opts) // as in moveAcross
}

// moveNew moves a file if its final path does not exist, and reports whether it did.
func (f *FS) moveNew(dir int, leaf, name string) (bool, error) {
	t, err := f.tree(name)
	if err != nil {
		return false, err
	}
	defer t.close()
	to, _, err := t.follow(name, true)
	if to.dir >= 0 {
		defer to.close()
	}
	if to.dir < 0 || !errors.Is(err, unix.ENOENT) {
		return false, err
	}
	err = renameNew(dir, leaf, to.dir, to.leaf)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EXDEV) {
		return false, nil
	}
	return err == nil, err
}

// remove removes the content of d, and d itself unless another program has put a directory in its
// place.
func (d *newDir) remove() {
	if fd, err := openat(d.root.FD, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
		r := remover{ctx: func() error { return nil }, top: fd}
		_ = r.entries(fd, 0) // best effort: the content is garbage
		unix.Close(fd)
	}
	_ = unix.Unlinkat(d.parent, d.temp, unix.AT_REMOVEDIR)
}
