// Package workspace stores states of a workspace, compares them, and writes or applies the difference.
//
// A state is a tree of blobs. A blob is the content of a file, a piece of a large one, or the listing of a folder. A
// listing names the digests of the folder's entries, so two states share all files and folders that are equal in both.
//
// take.go stores the state of a sandbox's workspace; read.go reads those files that have changed since the last one.
// learn.go knows the content of an archive that is unpacked into a workspace, so that it need not be read back.
// listing.go and piece.go have the formats of listings and of large files. compare.go finds what differs between two
// states, pack.go writes one as an archive, reach.go lists its blobs, and temporary.go keeps blobs where there is no
// store.
//
// patch.go writes a difference in git's format, with delta.go and base85.go for binary files. apply.go applies it to a folder of this
// machine. paths.go has the rules for paths and patterns.
package workspace

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"time"

	"github.com/agentenv-dev/agentenv/internal/archive"
	"github.com/agentenv-dev/agentenv/primitives"
)

// Limit bounds how much of a workspace is read at once.
var Limit = archive.Limit{Advice: "remove what is not needed from the workspace, or leave it out of the changes with ignore_changes, and of checkpoints with checkpoints.ignore"}

// Digest names the content of a blob: its SHA-256 in lower-case hexadecimal digits.
type Digest string

// Blobs keeps contents by their digests. See the methods of store.Store.
type Blobs interface {
	PutBlobs(ctx context.Context, contents iter.Seq2[io.Reader, error]) ([]Digest, error)
	Blob(ctx context.Context, d Digest) (io.ReadCloser, error)
}

// Source is what Take needs of a sandbox.
type Source interface {
	// Files returns the files of the sandbox, whose relative paths begin in the workspace.
	Files() primitives.Files
	// Pack returns the workspace as a tar archive.
	Pack(ctx context.Context, opts primitives.PackOptions) (io.ReadCloser, error)
}

// State is a stored state of a workspace.
type State struct {
	Root  Digest // of the listing of the workspace
	Files int    // regular files
	Bytes int64  // of all files
	Read  int    // files whose content was read
	// Unreadable and Unsteady name at most 10 of the files each that could not be read, which are missing in the
	// state, and that changed whenever they were read.
	Unreadable, Unsteady []string
}

// maxNamed is how many files State.Unreadable and State.Unsteady name.
const maxNamed = 10

// Entry is one file, link or folder.
type Entry struct {
	Name    string      // the last element of its path
	Mode    fs.FileMode // type and permission
	Size    int64       // of a regular file, in bytes
	ModTime time.Time
	Target  string // of a link

	// digest is that of the content of a small file, of the list of the pieces of a large one, or of the listing of a
	// folder.
	digest Digest
	pieces bool // digest is that of a list of pieces
}

func (e Entry) isDir() bool  { return e.Mode.IsDir() }
func (e Entry) isLink() bool { return e.Mode&fs.ModeSymlink != 0 }

func (e Entry) same(o Entry) bool { return e.Mode == o.Mode && e.sameContent(o) }

// sameContent compares the contents of files and the targets of links.
func (e Entry) sameContent(o Entry) bool {
	return e.isLink() == o.isLink() && e.Target == o.Target && e.digest == o.digest
}
