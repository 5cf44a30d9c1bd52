package files

import (
	"context"
	"errors"
	"io"

	"github.com/agentenv-dev/agentenv/primitives"
)

// Pack implements primitives.Packer.
func (f *FS) Pack(ctx context.Context, dir string, opts primitives.PackOptions) (io.ReadCloser, error) {
	return nil, f.fail("pack", dir, errors.ErrUnsupported)
}

// Unpack implements primitives.Unpacker.
func (f *FS) Unpack(ctx context.Context, dir string, r io.Reader) error {
	return f.fail("unpack", dir, errors.ErrUnsupported)
}
