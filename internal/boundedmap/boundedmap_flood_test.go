//go:build !race

package boundedmap

import (
	"fmt"
	"testing"

	"github.com/agentenv-dev/agentenv/internal/test/testmemory"
)

func TestFloodOfEntriesKeepsAMapBounded(t *testing.T) {
	m := Map[string]{Max: 8 << 20}
	testmemory.AtMost(t, 24<<20, func() {
		for i := range 200_000 {
			m.Put(fmt.Sprint(i), "", 0)
		}
		for i := range 200 {
			m.Put(fmt.Sprint(i), string(make([]byte, 1<<20)), 1<<20)
		}
	})
	m.Put("small", "", 0)
	m.Put("large", string(make([]byte, 9<<20)), 9<<20)
	if _, ok := m.Get("large"); ok {
		t.Error("an entry that alone is too large is kept")
	}
	if _, ok := m.Get("small"); !ok {
		t.Error("one that is not kept makes the others forgotten")
	}
}
