package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/agentenv-dev/agentenv/primitives"
)

// gitignore is the name of the files that tell git what to ignore.
const gitignore = ".gitignore"

// Gitignores returns the contents of the .gitignore files of a state, by their paths, that are in
// the folders above some files.
func Gitignores(ctx context.Context, blobs Blobs, root Digest, names []string) (map[string][]byte, error) {
	g := gitignores{ctx: ctx, blobs: blobs, above: make(map[string]bool), rules: make(map[string][]byte)}
	for _, name := range names {
		for dir := path.Dir(name); dir != "." && !g.above[dir]; dir = path.Dir(dir) {
			g.above[dir] = true
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	return g.rules, g.dir(root, "")
}

type gitignores struct {
	ctx   context.Context //nolint:containedctx // of the one call
	blobs Blobs
	above map[string]bool // the folders to look into
	rules map[string][]byte
	size  int64 // of them
}

func (g *gitignores) dir(d Digest, dir string) error {
	entries, err := list(g.ctx, g.blobs, d)
	if err != nil {
		return inFile(path.Join(".", dir), err)
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		switch {
		case e.isDir() && g.above[name]:
			err = g.dir(e.digest, name)
		case e.Name == gitignore && e.Mode.IsRegular(): // git follows no link to one
			err = inFile(name, g.read(name, e))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxGitignores is how many bytes of .gitignore files are read.
const maxGitignores = 16 << 20

func (g *gitignores) read(name string, e Entry) error {
	if g.size += e.Size; g.size > maxGitignores {
		return fmt.Errorf("%w: the .gitignore files of the workspace have more than %d MiB", primitives.ErrLimit, maxGitignores>>20)
	}
	r, err := openContent(g.ctx, g.blobs, e)
	if err != nil {
		return err
	}
	content, err := io.ReadAll(r)
	g.rules[name] = content
	return errors.Join(err, r.Close())
}
