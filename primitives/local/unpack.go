package local

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
)

// Unpack writes an archive from a sandbox below a folder of this machine, which is
// made if it is missing. The rules are those of [primitives.Unpack], except that the
// umask of this process applies and that folders which exist keep their mode. Limits
// are the caller's.
func Unpack(ctx context.Context, dir string, r io.Reader) (err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return &primitives.Error{Op: "unpack", Target: dir, Err: err}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return &primitives.Error{Op: "unpack", Target: dir, Err: err}
	}
	f, err := files.New(files.Config{Backend: "local", Paths: primitives.Paths{Workspace: dir}, UID: -1, GID: -1, Umask: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Unpack(ctx, ".", r)
}
