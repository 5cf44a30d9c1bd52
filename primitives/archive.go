package primitives

import (
	"context"
	"errors"
	"io"
)

// PackOptions says what to pack. The zero value packs everything.
type PackOptions struct {
	// Ignore leaves out what matches, as in WatchOptions.Ignore.
	Ignore []string `json:"ignore,omitempty"`
}

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

// Pack returns a directory as an uncompressed tar stream: regular files,
// directories and symbolic links with paths relative to dir, sorted, with
// permission and modification time; no owners. FIFOs, sockets and devices are
// left out. An error while packing is the reader's error, never a stream that
// merely ends early.
// A sandbox that cannot pack returns errors.ErrUnsupported.
func Pack(ctx context.Context, f Files, dir string, opts PackOptions) (io.ReadCloser, error) {
	if p, ok := f.(Packer); ok {
		return p.Pack(ctx, dir, opts)
	}
	return nil, &Error{Op: "pack", Target: dir, Err: errors.ErrUnsupported}
}

// Unpack writes an uncompressed tar stream below dir, which is made if it is
// missing. Nothing is written outside dir: an entry with an absolute path, with
// ".." or below a symbolic link that leads out is [ErrPathEscape]. A link's target is
// data and kept as it is, wherever it leads. A file in the place of a link replaces
// it. Set-user-id, set-group-id and sticky bits and owners are not taken over. Hard
// links become copies. FIFOs, sockets and devices are [ErrNotRegular]. What was
// unpacked before an error stays. It ends as Files.WriteFile does, whatever r does. A
// sandbox that cannot unpack returns errors.ErrUnsupported.
func Unpack(ctx context.Context, f Files, dir string, r io.Reader) error {
	if u, ok := f.(Unpacker); ok {
		return u.Unpack(ctx, dir, r)
	}
	return &Error{Op: "unpack", Target: dir, Err: errors.ErrUnsupported}
}
