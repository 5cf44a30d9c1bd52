// Package files is the file half of the engine: it implements
// primitives.Files, BatchWriter, Packer and Unpacker on the machine it runs on.
package files

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Config says where the files are and whose.
type Config struct {
	// Backend is the name in errors.
	Backend string
	// Paths are the sandbox's folders. Relative paths start at, and are
	// confined to, Paths.Workspace; all of them are safe from Remove and Move.
	Paths primitives.Paths
	// UID and GID own what is newly made; -1 leaves it to the process.
	UID, GID int
}

// FS implements the files of a sandbox.
type FS struct {
	cfg Config
}

// New returns the files of a sandbox whose folders exist.
func New(cfg Config) (*FS, error) { return &FS{cfg: cfg}, nil }

// Close releases what the FS holds. Later calls return
// primitives.ErrUnavailable. It may be called more than once.
func (f *FS) Close() error { return nil }

// Resolve returns the absolute path of an existing directory, following the
// same rule as every other path: a relative one starts at the workspace and
// must stay in it. An empty dir is the workspace.
func (f *FS) Resolve(dir string) (string, error) { return "", f.fail("resolve", dir) }

// Open implements primitives.Files.
func (f *FS) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	return nil, f.fail("open", name)
}

// WriteFile implements primitives.Files.
func (f *FS) WriteFile(ctx context.Context, name string, r io.Reader, opts primitives.WriteOptions) error {
	return f.fail("write", name)
}

// Stat implements primitives.Files.
func (f *FS) Stat(ctx context.Context, name string) (primitives.FileInfo, error) {
	return primitives.FileInfo{}, f.fail("stat", name)
}

// List implements primitives.Files.
func (f *FS) List(ctx context.Context, dir string, opts primitives.ListOptions) ([]primitives.FileInfo, error) {
	return nil, f.fail("list", dir)
}

// Mkdir implements primitives.Files.
func (f *FS) Mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	return f.fail("mkdir", name)
}

// Remove implements primitives.Files.
func (f *FS) Remove(ctx context.Context, name string, recursive bool) error {
	return f.fail("remove", name)
}

// Move implements primitives.Files.
func (f *FS) Move(ctx context.Context, from, to string) error { return f.fail("move", from) }

// WriteFiles implements primitives.BatchWriter.
func (f *FS) WriteFiles(ctx context.Context, files []primitives.File) ([]error, error) {
	return nil, f.fail("write", "")
}

// Pack implements primitives.Packer.
func (f *FS) Pack(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
	return nil, f.fail("pack", dir)
}

// Unpack implements primitives.Unpacker.
func (f *FS) Unpack(ctx context.Context, dir string, r io.Reader) error { return f.fail("unpack", dir) }

func (f *FS) fail(op, target string) error {
	return &primitives.Error{Op: op, Backend: f.cfg.Backend, Target: target, Err: errors.ErrUnsupported}
}
