package primitives

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// Files is the file part of a sandbox. The package documentation describes paths.
type Files interface {
	// Open reads a regular file as a stream. Symbolic links are followed.
	// Errors: fs.ErrNotExist, fs.ErrPermission, [ErrIsDirectory],
	// [ErrNotRegular] (at once: opening a FIFO does not wait for a writer).
	Open(ctx context.Context, name string) (io.ReadCloser, error)

	// WriteFile writes what it reads from r. It creates missing parent directories. Unless
	// opts.Append is set, the file appears whole or not at all: when r or the write fails or
	// ctx is cancelled, the old file is unchanged and nothing else remains. An existing file
	// keeps its mode and, where the sandbox's user may set it, its owner. WriteFile follows a
	// symbolic link, also to a target that does not exist yet. Another hard link to the old
	// file keeps the old content.
	//
	// WriteFile returns when ctx is done or the sandbox or its handle ends, even while a Read
	// of r blocks. It does not wait for that Read.
	//
	// Errors: fs.ErrPermission also when only the file, not its directory, is read-only;
	// [ErrIsDirectory], [ErrNotRegular], [ErrNoSpace], [ErrNotDirectory] when a parent is a
	// file; fs.ErrExist and [ErrConflict] as described at [WriteOptions].
	WriteFile(ctx context.Context, name string, r io.Reader, opts WriteOptions) error

	// Stat describes the file at a path. It does not follow a symbolic link.
	Stat(ctx context.Context, name string) (FileInfo, error)

	// List describes the files below a directory, sorted by path, byte by byte. If dir is a
	// symbolic link, List follows it; it lists links below dir and does not follow them. It
	// leaves out entries that vanish during the listing. It lists an unreadable directory below
	// dir without its entries; if dir itself is unreadable, the error is fs.ErrPermission. When
	// a limit is reached (opts.Limit or [MaxListing]), List returns the entries that fit and
	// [ErrLimit].
	List(ctx context.Context, dir string, opts ListOptions) ([]FileInfo, error)

	// Mkdir creates a directory and its missing parents. An existing directory stays unchanged.
	// Mode zero means 0755.
	Mkdir(ctx context.Context, name string, mode fs.FileMode) error

	// Remove removes a file, a symbolic link (never its target) or, with recursive, a directory
	// and everything in it. Without recursive, a directory that is not empty returns
	// [ErrNotEmpty]. A missing path returns fs.ErrNotExist. The workspace and the folders of
	// [Paths] cannot be removed; they return fs.ErrInvalid.
	Remove(ctx context.Context, name string, recursive bool) error

	// Move renames a file, link or directory. It replaces an existing file at to at once; an
	// existing directory returns [ErrIsDirectory]. It creates missing parents of to. Moving a
	// directory into itself returns fs.ErrInvalid.
	Move(ctx context.Context, from, to string) error
}

// WriteOptions configures [Files].WriteFile. The zero value replaces the file.
type WriteOptions struct {
	// Mode is the permission of the file, also of an existing file. Zero means 0644 for a new
	// file and leaves the mode of an existing file unchanged.
	Mode fs.FileMode `json:"mode,omitempty"`
	// Append adds to the end of the file instead of replacing it. It is not
	// atomic: what was written before a failure stays.
	Append bool `json:"append,omitempty"`
	// Exclusive returns fs.ErrExist if the file exists.
	Exclusive bool `json:"exclusive,omitempty"`
	// IfRevision writes only if the file still has this FileInfo.Revision, which Stat returned;
	// otherwise the error is [ErrConflict], also when the file was removed.
	IfRevision string `json:"if_revision,omitempty"`
}

// FileInfo describes one file.
type FileInfo struct {
	// Path is the name given to Stat, or the slash path relative to the directory given to
	// List.
	Path    string      `json:"path"`
	Size    int64       `json:"size"` // bytes; zero unless the file is regular
	Mode    fs.FileMode `json:"mode"` // type and permission, as in io/fs
	ModTime time.Time   `json:"mod_time"`
	// Target is where a symbolic link points, as written in it.
	Target string `json:"target,omitempty"`
	// Revision changes whenever the file's content changes or the file is replaced; see
	// WriteOptions.IfRevision. It is opaque, and empty unless the file is regular.
	Revision string `json:"revision,omitempty"`
	UID      int    `json:"uid"`
	GID      int    `json:"gid"`
}

// IsDir reports whether the file is a directory.
func (i FileInfo) IsDir() bool { return i.Mode.IsDir() }

// ListOptions configures [Files].List. The zero value lists the direct children.
type ListOptions struct {
	// Depth is how many levels to list: 0 and 1 are the direct children, 2
	// their children too, -1 everything.
	Depth int `json:"depth,omitempty"`
	// Pattern selects the entries whose path, relative to the directory, matches: "**/*.go",
	// "*.{md,txt}". The syntax is that of github.com/bmatcuk/doublestar/v4; a bad pattern
	// returns fs.ErrInvalid. With a Depth of zero, a pattern that contains "/" or "**" searches
	// as deep as needed.
	Pattern string `json:"pattern,omitempty"`
	// Limit is the maximum number of entries; zero means as many as fit into MaxListing.
	Limit int `json:"limit,omitempty"`
	// Strict makes a directory below the listed one that cannot be read fs.ErrPermission, with its path.
	Strict bool `json:"strict,omitempty"`
}
