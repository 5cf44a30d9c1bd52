//go:build !race

package files

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
	"github.com/agentenv-dev/agentenv/primitives"
)

func TestFloodOfLongPathsInAListingIsBounded(t *testing.T) {
	f, paths := open(t)
	deep, err := os.OpenRoot(paths.Workspace)
	must(t, err)
	for range 14 {
		name := strings.Repeat("d", 250)
		must(t, deep.Mkdir(name, 0o755))
		inner, err := deep.OpenRoot(name)
		must(t, err)
		must(t, deep.Close())
		deep = inner
	}
	t.Cleanup(func() { deep.Close() })
	for i := range 30_000 { // of 3.5 KiB of path each: 105 MiB
		file, err := deep.Create(fmt.Sprint(i))
		must(t, err)
		must(t, file.Close())
	}
	testmemory.AtMost(t, 2*primitives.MaxListing, func() {
		infos, err := f.List(t.Context(), ".", primitives.ListOptions{Depth: -1})
		if !errors.Is(err, primitives.ErrLimit) || len(infos) < 15_000 {
			t.Errorf("%d entries, %v; want those that fit and ErrLimit", len(infos), err)
		}
	})
}
