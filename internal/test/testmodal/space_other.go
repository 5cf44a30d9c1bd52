//go:build !linux

package testmodal

import (
	"os"
	"path/filepath"
)

// isolated returns false: spaces have their own namespaces and root file system only on Linux.
func isolated() bool { return false }

// space is the directory of a sandbox.
type space struct{ opened spaceOptions }

// newSpace creates a space.
func newSpace(opts spaceOptions) (*space, error) {
	for _, part := range parts {
		if err := os.MkdirAll(filepath.Join(opts.dir, part), 0o755); err != nil {
			return nil, err
		}
	}
	return &space{opened: opts}, nil
}

// inside runs f.
func (s *space) inside(f func() error) error { return f() }

// close has nothing to do.
func (s *space) close() error { return nil }
