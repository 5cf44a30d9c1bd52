// Package files implements primitives.Files, BatchWriter, Packer and Unpacker on the machine that
// it runs on.
//
// Every operation first opens the directory that holds the file, for relative paths by package
// beneath, and then works on names in that open directory. No path is looked up twice, so that a
// rename by another process in between cannot lead to a wrong file.
//
// Nothing is synced to the disk: files survive the end of this program, but not a loss of power.
package files

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Config says where the files are and who owns them.
type Config struct {
	// Backend is the name in errors.
	Backend string
	// Paths are the sandbox's folders. Relative paths start at, and are confined to,
	// Paths.Workspace. Remove and Move refuse all of these folders.
	Paths primitives.Paths
	// UID and GID own new files; -1 means the IDs of this process.
	UID, GID int
	// Gone returns why the sandbox is gone, or nil. A write calls it between two pieces. A nil Gone
	// means that the sandbox is never gone.
	Gone func() error
	// umask applies the umask of the process to new files, and leaves the mode of existing files
	// unchanged. The owner can enter and write new folders.
	umask bool
}

// FS implements the files of a sandbox. Its methods may be called from several
// goroutines.
type FS struct {
	cfg   Config
	names []string // absolute paths of the workspace: as configured, and without links
	leaf  string   // the workspace's name in anchor

	mu     sync.RWMutex // guards anchor
	anchor int          // the folder that holds the workspace; -1 after Close

	// commit orders the moments at which writes become visible: a write that depends on a revision
	// excludes all other writes between its check and its rename.
	commit sync.RWMutex

	freeing sync.WaitGroup // large files that were replaced

	done    chan struct{}  // closed by Close, which ends writes
	writing sync.WaitGroup // Add needs mu

	chunks sync.Pool // of *[]byte, for copying
}

// chunkSize is how much is copied between two checks of the context.
const chunkSize = 128 << 10

// New returns the files of a sandbox whose folders exist. The workspace may later be removed and
// made again; a link in its place is refused.
func New(cfg Config) (*FS, error) {
	fail := func(err error) (*FS, error) {
		return nil, &primitives.Error{Op: "open", Backend: cfg.Backend, Target: cfg.Paths.Workspace, Err: Classify(err)}
	}
	if !path.IsAbs(cfg.Paths.Workspace) {
		return fail(invalid("the workspace must be an absolute path"))
	}
	resolved, err := filepath.EvalSymlinks(cfg.Paths.Workspace)
	if err != nil {
		return fail(err)
	}
	anchor, err := openPath(path.Dir(resolved))
	if err != nil {
		return fail(err)
	}
	names := slices.Compact([]string{path.Clean(cfg.Paths.Workspace), resolved})
	f := newFS(cfg, names, anchor, path.Base(resolved))
	root, err := f.workspace()
	if err != nil {
		_ = f.Close()
		return fail(err)
	}
	unix.Close(root)
	return f, nil
}

func newFS(cfg Config, names []string, anchor int, leaf string) *FS {
	f := &FS{cfg: cfg, names: names, leaf: leaf, anchor: anchor, done: make(chan struct{})}
	f.chunks.New = func() any { b := make([]byte, chunkSize); return &b }
	return f
}

// Close ends the writes in progress, waits for them, and releases what the FS holds. It does not
// wait for a reader of the caller that blocks. Later calls return primitives.ErrUnavailable; open
// readers stay usable. Close may be called more than once.
func (f *FS) Close() error {
	f.mu.Lock()
	if f.anchor >= 0 {
		unix.Close(f.anchor)
		f.anchor = -1
		close(f.done)
	}
	f.mu.Unlock()
	f.writing.Wait()
	f.freeing.Wait()
	return nil
}

// beginWrite makes Close wait until end is called.
func (f *FS) beginWrite() (end func(), err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.anchor < 0 {
		return nil, errClosed()
	}
	f.writing.Add(1)
	return f.writing.Done, nil
}

// workspace opens the workspace. It looks the workspace up each time, because a command may remove
// it and make it again.
func (f *FS) workspace() (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.anchor < 0 {
		return -1, errClosed()
	}
	fd, err := openat(f.anchor, f.leaf, dirFlags|unix.O_NOFOLLOW, 0)
	if err != nil {
		if st, serr := lstatat(f.anchor, f.leaf); serr == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return -1, fmt.Errorf("%w: the workspace was replaced by a symbolic link", primitives.ErrPathEscape)
		}
		return -1, err
	}
	return fd, nil
}

// alive returns an error after Close, else nil.
func (f *FS) alive() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.anchor < 0 {
		return errClosed()
	}
	return nil
}

func errClosed() error { return fmt.Errorf("%w: it was closed", primitives.ErrUnavailable) }

// begin checks the preconditions of every operation on a path.
func (f *FS) begin(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch {
	case name == "":
		return invalid("the path is empty")
	case strings.IndexByte(name, 0) >= 0:
		return invalid("the path contains a NUL byte")
	}
	return nil
}

// Resolve returns the absolute path of an existing directory. The rule for paths applies: a
// relative path starts at the workspace and must stay in it. An empty dir is the workspace.
//
// The result for a relative dir has no links in it. It is a name, not an open directory: another
// process may change what is there before the caller uses it.
func (f *FS) Resolve(dir string) (string, error) {
	abs, err := f.locate(dir)
	return abs, f.fail("resolve", dir, err)
}

func (f *FS) locate(dir string) (string, error) {
	if strings.IndexByte(dir, 0) >= 0 {
		return "", invalid("the path contains a NUL byte")
	}
	t, err := f.tree(dir)
	if err != nil {
		return "", err
	}
	defer t.close()
	if t.free {
		fd, err := openPath(dir)
		if err != nil {
			return "", err
		}
		unix.Close(fd)
		if slices.Contains(strings.Split(dir, "/"), "..") {
			return filepath.EvalSymlinks(dir) // only the file system can resolve ".."
		}
		return path.Clean(dir), nil
	}
	fd, resolved, err := t.root.Locate(dir, noOptions)
	if err != nil {
		return "", err
	}
	unix.Close(fd)
	return path.Join(f.names[0], resolved), nil
}

// Stat implements primitives.Files.
func (f *FS) Stat(ctx context.Context, name string) (primitives.FileInfo, error) {
	info, err := f.stat(ctx, name)
	return info, f.fail("stat", name, err)
}

func (f *FS) stat(ctx context.Context, name string) (primitives.FileInfo, error) {
	if err := f.begin(ctx, name); err != nil {
		return primitives.FileInfo{}, err
	}
	p, err := f.place(name, false)
	if err != nil {
		return primitives.FileInfo{}, err
	}
	defer p.close()
	st, err := lstatat(p.dir, p.leaf)
	if err != nil {
		return primitives.FileInfo{}, err
	}
	return describe(p.dir, p.leaf, name, &st)
}

// own gives a new file to the configured owner.
func (f *FS) own(fd int) error {
	if f.cfg.UID < 0 && f.cfg.GID < 0 {
		return nil
	}
	return unix.Fchown(fd, f.cfg.UID, f.cfg.GID)
}

// mkdirAt makes one directory with exactly this mode, regardless of the umask.
func (f *FS) mkdirAt(dir int, name string, mode fs.FileMode) error {
	if err := unix.Mkdirat(dir, name, uint32(mode.Perm())); err != nil || f.cfg.umask {
		return err
	}
	fd, err := openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if os.IsNotExist(err) || os.IsPermission(err) {
			return nil // removed again, or made without the right to read it
		}
		return err
	}
	defer unix.Close(fd)
	if err := f.own(fd); err != nil {
		return err
	}
	return unix.Fchmod(fd, uint32(mode.Perm()))
}
