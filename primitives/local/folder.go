package local

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/agentenv-dev/agentenv/primitives"
	"github.com/agentenv-dev/agentenv/primitives/local/internal/files"
)

// Folder is a folder of this machine that takes files of a sandbox, which is not
// trusted: nothing is written outside of the folder, whatever links it or an earlier
// copy has made in it. The umask of this process applies, and files and folders that
// exist keep their mode. Limits are the caller's. Make one with [OpenFolder] and close
// it. Its methods may be called from several goroutines.
//
// Errors are a [*primitives.Error] with the path on this machine. Those of a reader are
// returned as they are.
type Folder struct {
	dir   string
	files *files.FS
}

// OpenFolder opens a folder, which is made if it is missing. A symbolic link in dir is
// followed as far as it stays in the folder that holds it, because an earlier copy may
// have made it; one that leads out is [primitives.ErrPathEscape].
func OpenFolder(dir string) (*Folder, error) {
	f, err := files.OpenHost(dir)
	if err != nil {
		var at *fs.PathError
		if errors.As(err, &at) && errors.Is(err, primitives.ErrPathEscape) {
			at.Err = outward("it is a symbolic link that leads out of its folder; give the path that it leads to")
		}
		return nil, err
	}
	return &Folder{dir: dir, files: f}, nil
}

// outward is a primitives.ErrPathEscape of a folder that is no workspace.
type outward string

// Error returns what leads out.
func (o outward) Error() string { return string(o) }

// Is reports that it is a primitives.ErrPathEscape.
func (o outward) Is(target error) bool { return target == primitives.ErrPathEscape }

// Unpack writes an archive. The rules are those of [primitives.Unpack].
func (f *Folder) Unpack(ctx context.Context, r io.Reader) error {
	return f.explain("unpack", f.files.Unpack(ctx, ".", r))
}

// WriteFile writes a file of the folder, with a mode if it is new and with a
// modification time unless that is zero. A symbolic link is written through if it stays
// in the folder. What was there before stays until the file is complete.
func (f *Folder) WriteFile(ctx context.Context, name string, r io.Reader, mode fs.FileMode, modTime time.Time) error {
	return f.explain("write", f.files.WriteFileAt(ctx, name, r, primitives.WriteOptions{Mode: mode}, modTime))
}

// Close lets go of the folder. It may be called more than once.
func (f *Folder) Close() error { return f.files.Close() }

// explain names the path on this machine.
func (f *Folder) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	name, ours, cause := files.Cause(err)
	if !ours {
		return cause
	}
	if errors.Is(cause, primitives.ErrPathEscape) {
		cause = outward("it leads out of the folder by its name or through a symbolic link; remove the link")
	}
	return &primitives.Error{Op: op, Target: filepath.Join(f.dir, name), Err: cause}
}
