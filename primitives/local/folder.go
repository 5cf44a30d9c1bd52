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

// Folder is a folder of this machine that receives files of a sandbox. The sandbox is not trusted:
// nothing is written outside of the folder, whatever links the sandbox or an earlier copy has put
// in it. The umask of this process applies, and existing files and folders keep their mode. The
// caller enforces limits. Make one with [OpenFolder] and close it after use. Its methods may be
// called from several goroutines.
//
// Errors are a [*primitives.Error] with the path on this machine. Errors of a reader are returned
// unchanged.
type Folder struct {
	dir   string
	files *files.FS
}

// OpenFolder opens a folder, which it makes if missing. It follows a symbolic link in dir only if
// the link stays in the folder that holds it, because an earlier copy may have made the link. A
// link that leads out is [primitives.ErrPathEscape].
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

// outward is a primitives.ErrPathEscape of a folder that is not a workspace.
type outward string

// Error says what leads out of the folder.
func (o outward) Error() string { return string(o) }

// Is reports whether target is primitives.ErrPathEscape.
func (o outward) Is(target error) bool { return target == primitives.ErrPathEscape }

// Unpack writes an archive. The rules are those of [primitives.Unpack].
func (f *Folder) Unpack(ctx context.Context, r io.Reader) error {
	return f.explain("unpack", f.files.Unpack(ctx, ".", r))
}

// WriteFile writes a file of the folder. mode is the mode of a new file; a zero modTime is not set.
// WriteFile follows a symbolic link that stays in the folder. An existing file keeps its content
// until the new content is complete.
func (f *Folder) WriteFile(ctx context.Context, name string, r io.Reader, mode fs.FileMode, modTime time.Time) error {
	return f.explain("write", f.files.WriteFileAt(ctx, name, r, primitives.WriteOptions{Mode: mode}, modTime))
}

// Close closes the folder. It may be called more than once.
func (f *Folder) Close() error { return f.files.Close() }

// explain adds the path on this machine to an error.
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
