//go:build !race

package files

import (
	"io"
	"os"
	"testing"

	"github.com/agentenv-dev/agentenv/primitives"
)

func TestFloodFromASparseFileIsPackedWithoutMemory(t *testing.T) {
	f, paths := open(t)
	const size = 6 << 30
	must(t, os.WriteFile(paths.Workspace+"/sparse", nil, 0o644))
	must(t, os.Truncate(paths.Workspace+"/sparse", size))
	r, err := f.Pack(t.Context(), "", primitives.PackOptions{})
	must(t, err)
	defer r.Close()
	p := r.(*packer)
	n, err := io.CopyN(io.Discard, r, 64<<20)
	if err != nil || n != 64<<20 || p.out.Cap() > 4*chunkSize {
		t.Errorf("%d bytes, %v, a buffer of %d", n, err, p.out.Cap())
	}
}
