package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
)

// Snapshot is a state whose files are found by their paths.
type Snapshot struct {
	ctx   context.Context //nolint:containedctx // of the one call that uses the snapshot
	blobs Blobs
	root  Digest
	files map[string]Entry // files and links

	folders map[string]fs.FileMode // their permissions
}

// load reads the listings of a state.
func load(ctx context.Context, blobs Blobs, root Digest) (*Snapshot, error) {
	s := &Snapshot{ctx: ctx, blobs: blobs, root: root, files: make(map[string]Entry), folders: make(map[string]fs.FileMode)}
	return s, s.dir(root, "", 0)
}

func (s *Snapshot) dir(d Digest, dir string, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	entries, err := list(s.ctx, s.blobs, d)
	if err != nil {
		return fmt.Errorf("%s: %w", path.Join(".", dir), err)
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		if !e.isDir() {
			s.files[name] = e
			continue
		}
		s.folders[name] = e.Mode.Perm()
		if err := s.dir(e.digest, name, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// copyTo writes a file's content or a link's target.
func (s *Snapshot) copyTo(w io.Writer, e Entry) error {
	r, err := openContent(s.ctx, s.blobs, e)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, r.Close())
}

// inFile adds the name of the file to an error.
func inFile(name string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}
