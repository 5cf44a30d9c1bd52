package primitives

import (
	"context"
	"errors"
	"io"
)

// PackOptions configures [Pack]. The zero value packs everything.
type PackOptions struct {
	// Ignore lists patterns of paths to leave out, as WatchOptions.Ignore does.
	Ignore []string `json:"ignore,omitempty"`
	// Only lists the paths of the files and links to pack, relative to the directory, in this order. Files that are
	// missing or cannot be read are left out. A small file that changes while it is read is read again. After a file
	// that was packed in a state that it may never have had comes a global header with the record [PackChanged], whose
	// value is its path. Nil means all.
	Only []string `json:"only,omitempty"`
}

// PackChanged is the PAX record of an archive that names a file which changed while it was packed.
const PackChanged = "AGENTENV.changed"

// Packer is implemented by primitives that pack a directory by themselves. Call
// [Pack].
type Packer interface {
	// Pack does what the function [Pack] promises.
	Pack(ctx context.Context, dir string, opts PackOptions) (io.ReadCloser, error)
}

// Unpacker is implemented by primitives that unpack an archive by themselves.
// Call [Unpack].
type Unpacker interface {
	// Unpack does what the function [Unpack] promises.
	Unpack(ctx context.Context, dir string, r io.Reader) error
}

// Pack returns a directory as an uncompressed tar stream: regular files, directories and
// symbolic links with paths relative to dir, sorted, with permission and modification time,
// without owners. FIFOs, sockets and devices are left out. If packing fails, the reader returns
// the error; the stream never just ends early.
//
// A sandbox that cannot pack returns errors.ErrUnsupported.
func Pack(ctx context.Context, f Files, dir string, opts PackOptions) (io.ReadCloser, error) {
	if p, ok := f.(Packer); ok {
		return p.Pack(ctx, dir, opts)
	}
	return nil, &Error{Op: "pack", Target: dir, Err: errors.ErrUnsupported}
}

// Unpack writes an uncompressed tar stream below dir and creates dir if it is missing. It
// writes nothing outside dir: an entry with an absolute path, with "..", or below a symbolic
// link that leads out returns [ErrPathEscape]. The target of a link is data: Unpack keeps it
// unchanged, wherever it leads. A file replaces a link of the same name. Set-user-id,
// set-group-id and sticky bits and owners are ignored. Hard links become copies. FIFOs, sockets
// and devices return [ErrNotRegular]. Entries may be sparse, in the formats that archive/tar
// reads. After an error, the files unpacked before it remain. Like Files.WriteFile, Unpack
// returns when ctx is done or the sandbox ends, even while a Read of r blocks. A sandbox that
// cannot unpack returns errors.ErrUnsupported.
func Unpack(ctx context.Context, f Files, dir string, r io.Reader) error {
	if u, ok := f.(Unpacker); ok {
		return u.Unpack(ctx, dir, r)
	}
	return &Error{Op: "unpack", Target: dir, Err: errors.ErrUnsupported}
}
