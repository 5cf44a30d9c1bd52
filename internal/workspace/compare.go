package tree

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/agentenv-dev/agentenv/session/store"
)

// Change is a file or link that differs between two states. Old is nil for a created file, New
// for a removed one.
type Change struct {
	Path     string
	Old, New *Entry
}

// Compare returns the changes from one state to another, sorted by path. It compares contents,
// permissions and links, but neither times nor empty directories. It does not read directories
// that both states share.
func Compare(ctx context.Context, blobs Blobs, from, to store.Digest) ([]Change, error) {
	c := comparing{blobs: blobs}
	if err := c.dirs(ctx, from, to, "", 0); err != nil {
		return nil, err
	}
	slices.SortFunc(c.changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return c.changes, nil
}

type comparing struct {
	blobs   Blobs
	changes []Change
}

// dirs compares two directories; an empty digest means that the directory does not exist.
func (c *comparing) dirs(ctx context.Context, from, to store.Digest, dir string, depth int) error {
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
		if err := c.entries(ctx, was[name], now, path.Join(dir, name), depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparing) list(ctx context.Context, d store.Digest) (map[string]*Entry, error) {
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
	case oldFile == nil || newFile == nil || !oldFile.same(newFile):
		c.changes = append(c.changes, Change{Path: name, Old: oldFile, New: newFile})
	}
	return nil
}

// split returns the listing of a directory, or the file.
func split(e *Entry) (dir store.Digest, file *Entry) {
	if e != nil && e.isDir() {
		return e.Digest, nil
	}
	return "", e
}

func (e *Entry) same(o *Entry) bool {
	return e.Mode == o.Mode && e.Digest == o.Digest && e.Target == o.Target
}
