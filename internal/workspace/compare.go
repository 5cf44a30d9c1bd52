package workspace

import (
	"context"
	"path"
	"slices"
	"strings"
)

// Change is a file or link that differs between two states. Old is nil for a created file, New
// for a removed one.
type Change struct {
	Path     string
	Old, New *Entry
}

// Compare returns the changes from one state to another, sorted by path. It compares contents,
// permissions and links, but neither times nor empty directories. It does not read directories
// that both states share. If skip is not nil, Compare leaves out the paths for which it returns true, and what is below
// them.
func Compare(ctx context.Context, blobs Blobs, from, to Digest, skip func(path string) bool) ([]Change, error) {
	c := comparing{blobs: blobs, skip: skip}
	if err := c.dirs(ctx, from, to, "", 0); err != nil {
		return nil, err
	}
	slices.SortFunc(c.changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return c.changes, nil
}

type comparing struct {
	blobs   Blobs
	skip    func(path string) bool
	changes []Change
}

// dirs compares two directories; an empty digest means that the directory does not exist.
func (c *comparing) dirs(ctx context.Context, from, to Digest, dir string, depth int) error {
	if from == to {
		return nil
	}
	if depth > maxDepth {
		return errTooDeep
	}
	was, err := c.list(ctx, from)
	if err != nil {
		return err
	}
	is, err := c.list(ctx, to)
	if err != nil {
		return err
	}
	for name := range was {
		if _, ok := is[name]; !ok {
			is[name] = nil
		}
	}
	for name, now := range is {
		full := path.Join(dir, name)
		if c.skip != nil && c.skip(full) {
			continue
		}
		if err := c.entries(ctx, was[name], now, full, depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparing) list(ctx context.Context, d Digest) (map[string]*Entry, error) {
	byName := make(map[string]*Entry)
	if d == "" {
		return byName, nil
	}
	entries, err := list(ctx, c.blobs, d)
	for i := range entries {
		byName[entries[i].Name] = &entries[i]
	}
	return byName, err
}

// entries compares two entries with the same name; nil means that the entry does not exist.
func (c *comparing) entries(ctx context.Context, was, is *Entry, name string, depth int) error {
	oldDir, oldFile := split(was)
	newDir, newFile := split(is)
	if err := c.dirs(ctx, oldDir, newDir, name, depth+1); err != nil {
		return err
	}
	switch {
	case oldFile == nil && newFile == nil:
	case oldFile == nil || newFile == nil || !oldFile.same(*newFile):
		c.changes = append(c.changes, Change{Path: name, Old: oldFile, New: newFile})
	}
	return nil
}

// split returns the listing of a directory, or the file.
func split(e *Entry) (dir Digest, file *Entry) {
	if e != nil && e.isDir() {
		return e.digest, nil
	}
	return "", e
}
