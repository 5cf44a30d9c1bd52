package primitives

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// Files is the file part of a sandbox. For what paths mean see the package
// documentation.
type Files interface {
	// Open reads a regular file as a stream. Symbolic links are followed.
	// Errors: fs.ErrNotExist, fs.ErrPermission, [ErrIsDirectory],
	// [ErrNotRegular] (at once: opening a FIFO does not wait for a writer).
	Open(ctx context.Context, name string) (io.ReadCloser, error)

	// WriteFile writes what it reads from r. Missing parent directories are
	// made. Unless opts.Append is set the file appears whole or not at all: when
	// r or the write fails or ctx is cancelled, what was there before is
	// unchanged and nothing else remains. An existing file keeps its mode and,
	// where the sandbox's user may set it, its owner. A symbolic link is
	// written through, also to a target that does not exist yet. Another hard
	// link to the old file keeps the old content.
	//
	// When ctx is done or the sandbox or its handle ends, WriteFile does, too, also while
	// a Read of r blocks. That Read is not waited for.
	//
	// Errors: fs.ErrPermission also when only the file, not its directory, is
	// read-only; [ErrIsDirectory], [ErrNotRegular], [ErrNoSpace],
	// [ErrNotDirectory] when a parent is a file, fs.ErrExist and [ErrConflict]
	// by the options.
	WriteFile(ctx context.Context, name string, r io.Reader, opts WriteOptions) error

	// Stat describes what is at the path. A symbolic link is described itself,
	// not followed.
	Stat(ctx context.Context, name string) (FileInfo, error)

	// List describes what is below a directory, sorted by path, byte by byte.
	// A dir that is a symbolic link is followed; links below it are listed and
	// not followed. Entries that vanish while listing are left out. An
	// unreadable directory below dir is listed without its entries; dir itself
	// unreadable is fs.ErrPermission. With a limit reached, opts.Limit or
	// [MaxListing], the entries that fit come with [ErrLimit].
	List(ctx context.Context, dir string, opts ListOptions) ([]FileInfo, error)

	// Mkdir makes a directory and its missing parents. An existing directory
	// is left as it is. Mode zero means 0755.
	Mkdir(ctx context.Context, name string, mode fs.FileMode) error

	// Remove removes a file, a symbolic link (never its target) or, with
	// recursive, a directory with all that is in it. Without recursive a
	// directory must be empty, else [ErrNotEmpty]. A missing path is
	// fs.ErrNotExist. The workspace and the folders of [Paths] cannot be
	// removed: fs.ErrInvalid.
	Remove(ctx context.Context, name string, recursive bool) error

	// Move renames a file, link or directory. An existing file at to is
	// replaced at once; an existing directory is refused with [ErrIsDirectory].
	// Missing parents of to are made. Moving a directory into itself is
	// fs.ErrInvalid.
	Move(ctx context.Context, from, to string) error
}

// WriteOptions says how to write. The zero value replaces the file.
type WriteOptions struct {
	// Mode is the permission of the file, also of an existing one. Zero means
	// 0644 for a new file and leaves an existing one's.
	Mode fs.FileMode `json:"mode,omitempty"`
	// Append adds to the end of the file instead of replacing it. It is not
	// atomic: what was written before a failure stays.
	Append bool `json:"append,omitempty"`
	// Exclusive refuses an existing file with fs.ErrExist.
	Exclusive bool `json:"exclusive,omitempty"`
	// IfRevision writes only if the file still is the one that Stat described
	// with this FileInfo.Revision; else [ErrConflict], also when it is gone.
	IfRevision string `json:"if_revision,omitempty"`
}

// FileInfo describes one file.
type FileInfo struct {
	// Path is what was asked for (Stat), or the slash path relative to the
	// listed directory (List).
	Path    string      `json:"path"`
	Size    int64       `json:"size"` // bytes; zero for what is not a regular file
	Mode    fs.FileMode `json:"mode"` // type and permission, as in io/fs
	ModTime time.Time   `json:"mod_time"`
	// Target is where a symbolic link points, as written in it.
	Target string `json:"target,omitempty"`
	// Revision changes whenever the file's content is changed or the file is
	// replaced; see WriteOptions.IfRevision. It is opaque, and empty for
	// what is not a regular file.
	Revision string `json:"revision,omitempty"`
	UID      int    `json:"uid"`
	GID      int    `json:"gid"`
}

// IsDir reports whether it is a directory.
func (i FileInfo) IsDir() bool { return i.Mode.IsDir() }

// ListOptions says what to list. The zero value lists the direct children.
type ListOptions struct {
	// Depth is how many levels to list: 0 and 1 are the direct children, 2
	// their children too, -1 everything.
	Depth int `json:"depth,omitempty"`
	// Pattern lists only what matches, as a path relative to the directory:
	// "**/*.go", "*.{md,txt}". The syntax is that of
	// github.com/bmatcuk/doublestar/v4; a bad pattern is fs.ErrInvalid. A
	// pattern with "/" or "**" and a Depth of zero looks as deep as needed.
	Pattern string `json:"pattern,omitempty"`
	// Limit is how many entries to return at most; zero means all that fit into
	// MaxListing.
	Limit int `json:"limit,omitempty"`
}
